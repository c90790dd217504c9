// Requests on one connection: five GETs, a POST of 3 MB, a GET.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	base := "http://" + os.Args[1] + ":" + os.Args[2]
	body := bytes.Repeat([]byte("abcdefghijk"), 286000)
	for i := 0; i < 7; i++ {
		method, content := "GET", []byte(nil)
		if i == 5 {
			method, content = "POST", body
		}
		request, err := http.NewRequest(method, fmt.Sprintf("%s/go-%d", base, i), bytes.NewReader(content))
		if err != nil {
			panic(err)
		}
		reply, err := http.DefaultClient.Do(request)
		if err != nil {
			panic(err)
		}
		io.Copy(io.Discard, reply.Body)
		reply.Body.Close()
		if reply.StatusCode != 200 {
			panic(reply.Status)
		}
	}
}
