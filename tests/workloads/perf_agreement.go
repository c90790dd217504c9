// Uses CPU in calls of the standard library and of its own, in two goroutines.
package main

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"sort"
)

func encode(n int) []byte {
	type row struct {
		Name string
		All  []int
	}
	rows := []row{}
	for i := range [50]int{} {
		rows = append(rows, row{"name", []int{i, n}})
	}
	sort.Slice(rows, func(a, b int) bool { return rows[a].All[0] > rows[b].All[0] })
	text, _ := json.Marshal(rows)
	return text
}

func work(done chan bool) {
	for n := 0; ; n++ {
		var out bytes.Buffer
		w, _ := flate.NewWriter(&out, 5)
		w.Write(encode(n))
		w.Close()
	}
}

func main() {
	done := make(chan bool)
	go work(done)
	work(done)
}
