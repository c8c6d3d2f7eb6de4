// Command porcupine checks with Porcupine, a checker of other authors, that a history of operations on keys is linearizable.
//
// The history is a file of JSON lines, one operation each, as the test `faults` of thalweg writes it to the file that
// THALWEG_FAULT_HISTORY names; main_test.go has examples. Operations on different keys are checked apart. The exit code
// is 0 if every key's history is linearizable, 1 if one is not, and 2 if one could not be checked in the time.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// operation is one line of the file. Begin and End are moments that order all operations; an operation whose outcome is
// unknown has no End. Value is the number that it writes, Expect the one on condition of which it writes (none: on
// condition that the key has no value), and Found the one that it read.
type operation struct {
	Client    int    `json:"client"`
	Protocol  string `json:"protocol"`
	Node      int    `json:"node"`
	Key       string `json:"key"`
	Begin     int64  `json:"begin"`
	End       *int64 `json:"end"`
	Operation string `json:"operation"`
	Expect    *int64 `json:"expect"`
	Value     *int64 `json:"value"`
	Answer    string `json:"answer"`
	Found     *int64 `json:"found"`
}

// none is the state of a key without a value.
const none = int64(-1)

func or(number *int64) int64 {
	if number == nil {
		return none
	}
	return *number
}

// step returns whether the answer is possible in the state, and the state afterwards. An operation of unknown outcome that
// never happens may be placed behind all others, so it is always possible, and then it happens.
func step(state, input, output any) (bool, any) {
	before, did, answer := state.(int64), input.(operation), output.(operation)
	holds, after := true, none
	switch did.Operation {
	case "get":
		return or(answer.Found) == before, before
	case "put":
		after = or(did.Value)
	case "swap":
		holds, after = before == or(did.Expect), or(did.Value)
	case "delete":
	case "delete_if":
		holds = before == or(did.Expect)
	}
	switch answer.Answer {
	case "done":
		return holds, after
	case "refused":
		return !holds, before
	default:
		if holds {
			return true, after
		}
		return true, before
	}
}

var model = porcupine.Model{
	Init:  func() any { return none },
	Step:  step,
	Equal: func(one, other any) bool { return one == other },
	DescribeOperation: func(input, output any) string {
		did := input.(operation)
		return fmt.Sprintf("%s %d if %d: %s %d over %s at node %d", did.Operation, or(did.Value), or(did.Expect),
			did.Answer, or(did.Found), did.Protocol, did.Node)
	},
}

// read returns the operations of each key.
func read(from io.Reader) (map[string][]porcupine.Operation, int, error) {
	keys, count := map[string][]porcupine.Operation{}, 0
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		var line operation
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, 0, fmt.Errorf("line %d: %w", count+1, err)
		}
		end := int64(math.MaxInt64)
		if line.End != nil {
			end = *line.End
		}
		keys[line.Key] = append(keys[line.Key], porcupine.Operation{
			ClientId: line.Client, Input: line, Call: line.Begin, Output: line, Return: end,
		})
		count++
	}
	return keys, count, lines.Err()
}

// without returns the operations without the writes of unknown outcome whose value nobody read or replaced. Such a write
// may never have happened, so if the others are linearizable, all are; and the search is much shorter.
func without(operations []porcupine.Operation) []porcupine.Operation {
	seen := map[int64]bool{}
	for _, each := range operations {
		line := each.Input.(operation)
		seen[or(line.Found)], seen[or(line.Expect)] = true, true
	}
	var rest []porcupine.Operation
	for _, each := range operations {
		line := each.Input.(operation)
		if line.End != nil || line.Value == nil || seen[*line.Value] {
			rest = append(rest, each)
		}
	}
	return rest
}

// check checks all keys, and returns the exit code.
func check(keys map[string][]porcupine.Operation, timeout time.Duration, out io.Writer) int {
	var wrong, undecided int
	for key, operations := range keys {
		if porcupine.CheckOperationsTimeout(model, without(operations), timeout) == porcupine.Ok {
			continue
		}
		switch porcupine.CheckOperationsTimeout(model, operations, timeout) {
		case porcupine.Illegal:
			wrong++
			fmt.Fprintf(out, "key %s: not linearizable (%d operations)\n", key, len(operations))
		case porcupine.Unknown:
			undecided++
			fmt.Fprintf(out, "key %s: not checked within %v (%d operations)\n", key, timeout, len(operations))
		}
	}
	fmt.Fprintf(out, "%d keys: %d linearizable, %d not, %d undecided\n", len(keys), len(keys)-wrong-undecided, wrong, undecided)
	switch {
	case wrong > 0:
		return 1
	case undecided > 0:
		return 2
	default:
		return 0
	}
}

func main() {
	timeout := flag.Duration("timeout", time.Minute, "longest time for one key")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: porcupine [-timeout 1m] HISTORY.jsonl")
		os.Exit(2)
	}
	file, err := os.Open(flag.Arg(0))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	keys, count, err := read(file)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	fmt.Printf("%d operations\n", count)
	os.Exit(check(keys, *timeout, os.Stdout))
}
