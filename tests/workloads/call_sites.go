// One query from three functions, each on a connection of its own: PORT PORT PORT SECONDS. Prints how often each sent it.
package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

var query = []byte("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
var answer [4096]byte
var sockets [3]net.Conn

func first() {
	sockets[0].Write(query) // line: first
	sockets[0].Read(answer[:])
}

func second() {
	sockets[1].Write(query) // line: second
	sockets[1].Read(answer[:])
}

type caller struct{}

func (caller) third() {
	sockets[2].Write(query) // line: third
	sockets[2].Read(answer[:])
}

func main() {
	for i := range sockets {
		socket, err := net.Dial("tcp", "127.0.0.1:"+os.Args[1+i])
		if err != nil {
			panic(err)
		}
		sockets[i] = socket
	}
	seconds, _ := strconv.ParseFloat(os.Args[4], 64)
	end := time.Now().Add(time.Duration(seconds * 1e9))
	var counts [3]int
	for time.Now().Before(end) {
		first()
		counts[0]++
		for i := 0; i < 2; i++ {
			second()
			counts[1]++
		}
		caller{}.third()
		counts[2]++
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("COUNTS", counts[0], counts[1], counts[2])
}
