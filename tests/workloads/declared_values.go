// Functions with values for tests/tests/declared_values.rs: the program counts them by user itself, and prints them.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// The last is longer than what is kept: 64 bytes of it are.
var users = []string{"ann", "bob", "béa", "with, comma \"and\" quotes", "", strings.Repeat("0123456789", 7), "zoe"}

type sums struct {
	count, failed, wall, cpu, items, level int64
}

var all sums
var calls []int64
var byUser = make([]sums, len(users))

func cpu() int64 {
	var used syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, 3, uintptr(unsafe.Pointer(&used)), 0)
	return used.Nano()
}

var sink uint64

//go:noinline
func spin(length time.Duration) {
	for end := time.Now().Add(length); time.Now().Before(end); {
		sink = sink*31 + 7
	}
}

// A text takes two registers. Fails where its level is negative.
//
//go:noinline
func handle(items int, user string, level int, tag string, who int) int {
	begin, before := time.Now(), cpu()
	spin(time.Duration(500+500*(items%4)) * time.Microsecond)
	wall, used := int64(time.Since(begin)), cpu()-before
	calls = append(calls, wall)
	for _, each := range []*sums{&all, &byUser[who]} {
		each.count++
		if level < 0 {
			each.failed++
		}
		each.wall += wall
		each.cpu += used
		each.items += int64(items)
		each.level += int64(level)
	}
	if len(tag) == 0 && len(user) == 0 {
		return -1
	}
	return level
}

func main() {
	rounds, _ := strconv.Atoi(os.Args[1])
	done := make(chan bool)
	for n := 0; n < rounds; n++ {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			level := n << 33
			if n%5 == 4 {
				level = -n
			}
			who := n % len(users)
			handle(n*7919, users[who], level, fmt.Sprint("tag ", n), who)
			done <- true
		}()
		<-done
	}
	fmt.Printf("TRUTH handle %d %d %d %d\n", all.count, all.wall, all.cpu, all.failed)
	for _, wall := range calls {
		fmt.Printf("CALL %d\n", wall)
	}
	fmt.Printf("SUMS %d %d\n", all.items, all.level)
	for i, one := range byUser {
		fmt.Printf("USER %d %d %d %d %d %s\n", one.count, one.wall, one.failed, one.items, one.level, users[i])
	}
	fmt.Println("DONE")
	time.Sleep(time.Hour)
}
