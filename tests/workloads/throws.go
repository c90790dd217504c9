// An HTTP server whose handlers panic: the path says with what, and what becomes of it. net/http closes the connection of a handler
// that panics; one around others answers with 500.
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
)

type Boom struct{ code int }

type Failed[T any] struct{ what T }

var none *Boom
var list []int

func fails(path string) {
	switch route := strings.SplitN(path, "/", 3)[1]; route {
	case "text":
		panic("a secret")
	case "error":
		panic(errors.New("a secret"))
	case "value":
		panic(Boom{7})
	case "pointer":
		panic(&Boom{7})
	case "generic":
		panic(Failed[string]{"a secret"})
	case "index":
		list[len(path)] = 1
	case "nil":
		none.code = 1
	}
}

func recovered(w http.ResponseWriter, status int) {
	if recover() != nil {
		w.WriteHeader(status)
	}
}

func main() {
	log.SetOutput(io.Discard)
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		switch {
		case strings.HasPrefix(path, "/status/"):
			w.WriteHeader(500)
		case strings.HasPrefix(path, "/handled/"):
			defer recovered(w, 200)
			fails("/value/")
		case strings.HasPrefix(path, "/drop/"):
			fails("/pointer/")
		default:
			defer recovered(w, 500)
			fails(path)
		}
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("PORT", listener.Addr().(*net.TCPAddr).Port)
	http.Serve(listener, nil)
}
