// Puts values into etcd, with so many outstanding at a time over one connection, and prints one line of JSON.
// Built by benchmarks/etcd.py from the sources of Debian's golang-etcd-server-dev.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/clientv3"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func main() {
	if len(os.Args) != 5 {
		check(fmt.Errorf("usage: %s ENDPOINT OUTSTANDING BYTES SECONDS", os.Args[0]))
	}
	outstanding, err := strconv.Atoi(os.Args[2])
	check(err)
	size, err := strconv.Atoi(os.Args[3])
	check(err)
	seconds, err := strconv.ParseFloat(os.Args[4], 64)
	check(err)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Args[1]}, DialTimeout: 10 * time.Second})
	check(err)
	buffer := make([]byte, size)
	_, err = rand.Read(buffer)
	check(err)
	value := string(buffer)
	_, err = client.Put(context.Background(), "warm-up", value)
	check(err)

	latencies, failed := make([][]float64, outstanding), make([]int, outstanding)
	var workers sync.WaitGroup
	cpu, begun := cpuSeconds(), time.Now()
	until := begun.Add(time.Duration(seconds * float64(time.Second)))
	for worker := 0; worker < outstanding; worker++ {
		workers.Add(1)
		go func(worker int) {
			defer workers.Done()
			key := strconv.Itoa(worker)
			for {
				sent := time.Now()
				if !sent.Before(until) {
					return
				}
				if _, err := client.Put(context.Background(), key, value); err != nil {
					failed[worker]++
					continue
				}
				latencies[worker] = append(latencies[worker], float64(time.Since(sent).Nanoseconds())/1e6)
			}
		}(worker)
	}
	workers.Wait()
	took := time.Since(begun).Seconds()
	cpu = cpuSeconds() - cpu
	var all []float64
	unknown := 0
	for worker, each := range latencies {
		all = append(all, each...)
		unknown += failed[worker]
	}
	sort.Float64s(all)
	check(json.NewEncoder(os.Stdout).Encode(map[string]interface{}{
		"commits":      len(all),
		"seconds":      took,
		"p50_ms":       all[len(all)/2],
		"p99_ms":       all[len(all)*99/100],
		"client_cpu_s": cpu,
		"unknown":      unknown,
	}))
}
