// A server whose handlers log by the standard logger and by standard error; every line has the request's path. One goroutine logs
// without a request.
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"time"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		log.Printf("begins path=%s", r.URL.Path)
		// Another goroutine runs on this thread meanwhile.
		time.Sleep(time.Millisecond)
		fmt.Fprintf(os.Stderr, "stderr path=%s\n", r.URL.Path)
		if len(r.URL.Path) > 6 && r.URL.Path[:6] == "/fail/" {
			w.WriteHeader(500)
		}
		fmt.Fprintln(w, "ok")
	})
	go func() {
		for range time.Tick(time.Millisecond) {
			log.Print("background path=/none")
		}
	}()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("PORT", listener.Addr().(*net.TCPAddr).Port)
	http.Serve(listener, nil)
}
