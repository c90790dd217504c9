// A server of net/http with a pool of connections: GET /MODE/ID computes for BURN_US and calls /b/ID/kN/dT of the upstream.
package main

import (
	"bufio"
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

var upstream = "127.0.0.1:" + os.Getenv("UPSTREAM_PORT")
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512}}

func path(ident string, number int) string {
	return fmt.Sprintf("/b/%s/k%d/d%d", ident, number, 500+rand.Intn(6000))
}

// One call by net/http's client, which writes from a goroutine of its connection.
func ask(ident string, number int) {
	reply, err := client.Get("http://" + upstream + path(ident, number))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	io.Copy(io.Discard, reply.Body)
	reply.Body.Close()
}

func nap(most time.Duration) { time.Sleep(time.Duration(rand.Int63n(int64(most)))) }

func later(ident string, number int) {
	nap(3 * time.Millisecond)
	ask(ident, number)
}

func direct(ident string) { ask(ident, 0) }

func naps(ident string) {
	nap(8 * time.Millisecond)
	ask(ident, 0)
	nap(4 * time.Millisecond)
	ask(ident, 1)
}

// Two goroutines, one of them two levels deep.
func children(ident string) {
	var all sync.WaitGroup
	all.Add(2)
	go func() {
		defer all.Done()
		later(ident, 0)
	}()
	go func() {
		defer all.Done()
		done := make(chan struct{})
		go func() {
			later(ident, 1)
			close(done)
		}()
		<-done
	}()
	all.Wait()
}

// Nobody waits for the call: it is mostly made when the request is answered, and its connection carries the next.
func forgotten(ident string) { go later(ident, 0) }

type job struct {
	ident string
	done  chan struct{}
}

var jobs = make(chan job)

func work() {
	for job := range jobs {
		nap(time.Millisecond)
		ask(job.ident, 0)
		job.done <- struct{}{}
	}
}

var started sync.Once

// One of 32 goroutines that the first request made makes the call.
func worker(ident string) {
	started.Do(func() {
		for i := 0; i < 32; i++ {
			go work()
		}
	})
	nap(2 * time.Millisecond)
	done := make(chan struct{})
	jobs <- job{ident, done}
	<-done
}

// A driver of database/sql that, as most do, writes on its caller's goroutine.
type connector struct{}

func (connector) Connect(context.Context) (driver.Conn, error) {
	stream, err := net.Dial("tcp", upstream)
	if err != nil {
		return nil, err
	}
	return &conn{stream, bufio.NewReader(stream)}, nil
}
func (connector) Driver() driver.Driver { return nil }

type conn struct {
	stream net.Conn
	reader *bufio.Reader
}

func (*conn) Prepare(string) (driver.Stmt, error) { return nil, driver.ErrSkip }
func (conn *conn) Close() error                   { return conn.stream.Close() }
func (*conn) Begin() (driver.Tx, error)           { return nil, driver.ErrSkip }

func (conn *conn) ExecContext(_ context.Context, path string, _ []driver.NamedValue) (driver.Result, error) {
	if _, err := fmt.Fprintf(conn.stream, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path); err != nil {
		return nil, err
	}
	reply, err := http.ReadResponse(conn.reader, nil)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(io.Discard, reply.Body)
	return driver.ResultNoRows, err
}

var database = sql.OpenDB(connector{})

// Two queries in a row, on a pool of sixteen connections.
func query(ident string) {
	nap(2 * time.Millisecond)
	for number := 0; number < 2; number++ {
		if _, err := database.Exec(path(ident, number)); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

// A program makes the call.
func command(ident string) {
	nap(3 * time.Millisecond)
	if err := exec.Command("curl", "-s", "-o", "/dev/null", "http://"+upstream+path(ident, 0)).Run(); err != nil {
		panic(err)
	}
}

func main() {
	database.SetMaxOpenConns(16)
	database.SetMaxIdleConns(16)
	modes := map[string]func(string){
		"direct": direct, "naps": naps, "children": children, "forgotten": forgotten, "worker": worker, "query": query,
		"command": command,
	}
	micros, _ := strconv.Atoi(os.Getenv("BURN_US"))
	burn := time.Duration(micros) * time.Microsecond
	http.HandleFunc("/", func(reply http.ResponseWriter, request *http.Request) {
		words := strings.Split(request.URL.Path, "/")
		for until := time.Now().Add(burn); time.Now().Before(until); {
		}
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
