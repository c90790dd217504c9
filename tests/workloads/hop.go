// One hop of a chain of hosts: answers GET /hop/ID after it has asked UPSTREAM=HOST:PORT for the same. Goroutines nap
// between the read and the call, so that they go on on other threads.
package main

import (
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"os"
	"time"
)

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512}}

func main() {
	http.HandleFunc("/", func(reply http.ResponseWriter, request *http.Request) {
		time.Sleep(time.Duration(500+rand.Intn(5500)) * time.Microsecond)
		answer, err := client.Get("http://" + os.Getenv("UPSTREAM") + request.URL.Path)
		if err != nil {
			http.Error(reply, err.Error(), http.StatusBadGateway)
			return
		}
		defer answer.Body.Close()
		io.Copy(reply, answer.Body)
	})
	listener, err := net.Listen("tcp", "0.0.0.0:"+os.Getenv("PORT"))
	if err != nil {
		panic(err)
	}
	fmt.Println("PORT", listener.Addr().(*net.TCPAddr).Port)
	panic(http.Serve(listener, nil))
}
