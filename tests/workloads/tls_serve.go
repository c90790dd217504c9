// A page of 612 bytes by net/http over crypto/tls: tls_serve CERTIFICATE KEY. Says its port.
package main

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
)

func main() {
	page := bytes.Repeat([]byte("x"), 612)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println("PORT", listener.Addr().(*net.TCPAddr).Port)
	panic(http.ServeTLS(listener, http.HandlerFunc(func(reply http.ResponseWriter, _ *http.Request) {
		reply.Write(page)
	}), os.Args[1], os.Args[2]))
}
