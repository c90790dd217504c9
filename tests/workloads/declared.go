// Functions for tests/tests/declared.rs: each times itself, and the program prints what it measured.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

type truth struct{ count, wall, cpu, failed int64 }

var hashTruth, growTruth, recoverTruth truth

func cpu() int64 {
	var used syscall.Timespec
	// CLOCK_THREAD_CPUTIME_ID; getrusage is behind by up to a tick.
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, 3, uintptr(unsafe.Pointer(&used)), 0)
	return used.Nano()
}

func (t *truth) add(wall time.Time, before int64, failed bool) {
	t.cpu += cpu() - before
	t.wall += int64(time.Since(wall))
	t.count++
	if failed {
		t.failed++
	}
}

var sink uint64

//go:noinline
func spin(length time.Duration) {
	for end := time.Now().Add(length); time.Now().Before(end); {
		sink = sink*31 + 7
	}
}

// Several returns, some of them early.
//
//go:noinline
func hash(n int) int {
	begin, before := time.Now(), cpu()
	if n%4 == 3 {
		spin(2 * time.Millisecond)
		hashTruth.add(begin, before, true)
		return -1
	}
	spin(4 * time.Millisecond)
	hashTruth.add(begin, before, false)
	return n
}

// Its stack grows within: it moves.
//
//go:noinline
func grow(n int) int {
	begin, before := time.Now(), cpu()
	sum := deepen(n)
	spin(time.Millisecond)
	growTruth.add(begin, before, false)
	return sum
}

//go:noinline
func deepen(n int) int {
	var room [512]byte
	room[n%512] = byte(n)
	if n == 0 {
		return int(room[0])
	}
	return deepen(n-1) + int(room[n%512])
}

// Returns by a recovered panic.
//
//go:noinline
func recovers() (result int) {
	begin, before := time.Now(), cpu()
	defer func() {
		if recover() != nil {
			result = 7
		}
	}()
	spin(time.Millisecond)
	recoverTruth.add(begin, before, false)
	panic("caught")
}

func say(name string, t truth) {
	fmt.Printf("TRUTH %s %d %d %d %d\n", name, t.count, t.wall, t.cpu, t.failed)
}

func main() {
	rounds, _ := strconv.Atoi(os.Args[1])
	done := make(chan bool)
	for n := 0; n < rounds; n++ {
		// A new goroutine each time: its stack is small.
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			hash(n)
			grow(200)
			recovers()
			done <- true
		}()
		<-done
	}
	say("hash", hashTruth)
	say("grow", growTruth)
	say("recovers", recoverTruth)
	fmt.Println("DONE")
	time.Sleep(time.Hour)
}
