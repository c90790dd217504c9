// A server of net/http that calls by grpc-go: GET /MODE/ID calls /b/ID.kN.dT of the upstream.
package main

import (
	"context"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// Messages are plain bytes: no generated code is needed.
type plain struct{}

func (plain) Marshal(v interface{}) ([]byte, error)      { return *v.(*[]byte), nil }
func (plain) Unmarshal(data []byte, v interface{}) error { *v.(*[]byte) = data; return nil }
func (plain) Name() string                               { return "plain" }
func (plain) String() string                             { return "plain" }

var shared *grpc.ClientConn

func ask(ident string, number int) {
	in, out := []byte("x"), []byte{}
	path := fmt.Sprintf("/b/%s.k%d.d%d", ident, number, 500+rand.Intn(6000))
	if err := shared.Invoke(context.Background(), path, &in, &out, grpc.ForceCodec(plain{})); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func nap(most time.Duration) { time.Sleep(time.Duration(rand.Int63n(int64(most)))) }

func naps(ident string) {
	nap(4 * time.Millisecond)
	ask(ident, 0)
	nap(4 * time.Millisecond)
	ask(ident, 1)
}

// Two goroutines.
func children(ident string) {
	var all sync.WaitGroup
	all.Add(2)
	for number := 0; number < 2; number++ {
		number := number
		go func() {
			defer all.Done()
			nap(3 * time.Millisecond)
			ask(ident, number)
		}()
	}
	all.Wait()
}

func main() {
	var err error
	shared, err = grpc.Dial("127.0.0.1:"+os.Getenv("UPSTREAM_PORT"), grpc.WithInsecure())
	if err != nil {
		panic(err)
	}
	modes := map[string]func(string){"naps": naps, "children": children}
	http.HandleFunc("/", func(reply http.ResponseWriter, request *http.Request) {
		words := strings.Split(request.URL.Path, "/")
		modes[words[1]](words[2])
		io.WriteString(reply, "ok\n")
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println("PORT", listener.Addr().(*net.TCPAddr).Port)
	panic(http.Serve(listener, nil))
}
