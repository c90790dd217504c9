// gRPC over crypto/tls, by grpc-go.
//
// tls_grpc serve CERTIFICATE KEY LOG: serves until it is ended, and logs "PATH STATUS" before each reply. Says its port.
// Calls of /e.E/... end with status 9 (FAILED_PRECONDITION), those of /b.B/... are answered with 300 kB.
// tls_grpc ask PORT LABEL VERSION CONNECTIONS CALLS BATCH: CONNECTIONS at once, each calls CALLS times, BATCH at a time,
// methods with LABEL; the same again after twenty calls.
package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// Messages are plain bytes: no generated code is needed.
type plain struct{}

func (plain) Marshal(v interface{}) ([]byte, error)      { return *v.(*[]byte), nil }
func (plain) Unmarshal(data []byte, v interface{}) error { *v.(*[]byte) = data; return nil }
func (plain) Name() string                               { return "plain" }
func (plain) String() string                             { return "plain" }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func number(text string) int {
	found, err := strconv.Atoi(text)
	must(err)
	return found
}

func serve(certificate, key, log string) {
	identity, err := tls.LoadX509KeyPair(certificate, key)
	must(err)
	lines, err := os.Create(log)
	must(err)
	answer := func(_ interface{}, stream grpc.ServerStream) error {
		var asked []byte
		if err := stream.RecvMsg(&asked); err != nil {
			return err
		}
		path, _ := grpc.MethodFromServerStream(stream)
		if rand.Intn(2) == 0 {
			time.Sleep(time.Duration(rand.Intn(5000)) * time.Microsecond)
		}
		if strings.HasPrefix(path, "/e.E/") {
			fmt.Fprintln(lines, path, int(codes.FailedPrecondition))
			return status.Error(codes.FailedPrecondition, "not now")
		}
		size := 3000
		if strings.HasPrefix(path, "/b.B/") {
			size = 300_000
		}
		fmt.Fprintln(lines, path, int(codes.OK))
		body := make([]byte, size)
		return stream.SendMsg(&body)
	}
	secure := credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{identity}, NextProtos: []string{"h2"}})
	server := grpc.NewServer(grpc.Creds(secure), grpc.CustomCodec(plain{}), grpc.UnknownServiceHandler(answer))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	fmt.Println("PORT", listener.Addr().(*net.TCPAddr).Port)
	must(server.Serve(listener))
}

func call(connection *grpc.ClientConn, path string) {
	in, out := []byte("x"), []byte{}
	err := connection.Invoke(context.Background(), path, &in, &out, grpc.ForceCodec(plain{}))
	if err != nil && status.Code(err) != codes.FailedPrecondition {
		panic(err)
	}
}

func ask(port, label, version string, connections, calls, batch int) {
	settings := &tls.Config{InsecureSkipVerify: true}
	if version == "1.2" {
		settings.MaxVersion = tls.VersionTLS12
	}
	var all sync.WaitGroup
	for n := 0; n < connections; n++ {
		all.Add(1)
		go func(n int) {
			defer all.Done()
			secure := grpc.WithTransportCredentials(credentials.NewTLS(settings))
			connection, err := grpc.Dial("127.0.0.1:"+port, secure)
			must(err)
			defer connection.Close()
			for first := 0; first < calls; first += batch {
				var together sync.WaitGroup
				for i := first; i < first+batch && i < calls; i++ {
					together.Add(1)
					go func(i int) {
						defer together.Done()
						service := [5]string{"s.S", "s.S", "e.E", "s.S", "b.B"}[i%5]
						call(connection, fmt.Sprintf("/%s/%s-%d-%d", service, label, n, i%20))
					}(i)
				}
				together.Wait()
			}
		}(n)
	}
	all.Wait()
}

func main() {
	arguments := os.Args[2:]
	if os.Args[1] == "serve" {
		serve(arguments[0], arguments[1], arguments[2])
		return
	}
	batch := 1
	if len(arguments) > 5 {
		batch = number(arguments[5])
	}
	ask(arguments[0], arguments[1], arguments[2], number(arguments[3]), number(arguments[4]), batch)
}
