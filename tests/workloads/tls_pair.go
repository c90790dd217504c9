// Two HTTPS servers and their clients in one process: tls_pair CERTIFICATE KEY REQUESTS.
//
// The front calls the back with the path it was asked for; paths differ. Half of the requests are HTTP/1.1, half HTTP/2.
// Says the ports as `PORTS FRONT BACK` and ends.
package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

func client(h2 bool) *http.Client {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: h2}
	if !h2 {
		transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	return &http.Client{Transport: transport}
}

func serve(handler http.HandlerFunc) int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() { panic(http.ServeTLS(listener, handler, os.Args[1], os.Args[2])) }()
	return listener.Addr().(*net.TCPAddr).Port
}

func get(by *http.Client, port int, path string) int {
	reply, err := by.Get(fmt.Sprintf("https://127.0.0.1:%d%s", port, path))
	if err != nil {
		panic(err)
	}
	io.Copy(io.Discard, reply.Body)
	reply.Body.Close()
	return reply.StatusCode
}

func main() {
	requests, err := strconv.Atoi(os.Args[3])
	if err != nil {
		panic(err)
	}
	back := serve(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "7") {
			w.WriteHeader(500)
		}
		w.Write(make([]byte, 5000))
	})
	inner := client(false)
	front := serve(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(get(inner, back, r.URL.Path))
		w.Write([]byte("done\n"))
	})
	fmt.Println("PORTS", front, back)
	// The agent looks at a program when it first encrypts.
	if len(os.Args) > 4 {
		get(client(false), front, "/first")
		time.Sleep(2 * time.Second)
		inner.CloseIdleConnections()
	}
	for _, h2 := range []bool{false, true} {
		by := client(h2)
		var group sync.WaitGroup
		for worker := 0; worker < 4; worker++ {
			group.Add(1)
			go func(worker int) {
				defer group.Done()
				for n := 0; n < requests/8; n++ {
					get(by, front, fmt.Sprintf("/go/%t-%d-%d", h2, worker, n))
				}
			}(worker)
		}
		group.Wait()
	}
}
