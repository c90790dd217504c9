// Calls for tests/tests/declared_calls.rs: each times itself, and the program prints what it measured.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"
)

var sink uint64
var calls []int64
var failed int

// Fails every fifth time.
//
//go:noinline
func work(n int, user string) int {
	for end := time.Now().Add(2 * time.Millisecond); time.Now().Before(end); {
		sink = sink*31 + 7
	}
	if n%5 == 4 {
		return -1
	}
	return len(user)
}

//go:noinline
func once(n int) int {
	begin := time.Now()
	result := work(n, [2]string{"even", "odd"}[n%2])
	calls = append(calls, int64(time.Since(begin)))
	if result < 0 {
		failed++
	}
	return result
}

//go:noinline
func twice(n int) int {
	return work(n, "a") + work(n+1, "b")
}

func main() {
	rounds, _ := strconv.Atoi(os.Args[1])
	runtime.LockOSThread()
	for n := 0; n < rounds; n++ {
		once(n)
	}
	twice(1)
	fmt.Printf("TRUTH once %d %d", len(calls), failed)
	for _, wall := range calls {
		fmt.Printf(" %d", wall)
	}
	fmt.Println("\nDONE")
	time.Sleep(time.Hour)
}
