package main

import (
	"io"
	"strings"
	"testing"
	"time"
)

func line(begin, end, operation, value, expect, answer, found string) string {
	return `{"client":1,"protocol":"http","node":0,"key":"k","begin":` + begin + `,"end":` + end + `,"operation":"` +
		operation + `","value":` + value + `,"expect":` + expect + `,"answer":"` + answer + `","found":` + found + "}"
}

func TestHistories(t *testing.T) {
	put := line("1", "2", "put", "7", "null", "done", "null")
	unknown := line("3", "null", "put", "8", "null", "unknown", "null")
	for name, history := range map[string]struct {
		lines []string
		code  int
	}{
		"a read of the last write":              {[]string{put, line("3", "4", "get", "null", "null", "value", "7")}, 0},
		"a stale read":                          {[]string{put, line("3", "4", "get", "null", "null", "value", "null")}, 1},
		"a write of unknown outcome, not seen":  {[]string{put, unknown, line("5", "6", "get", "null", "null", "value", "7")}, 0},
		"a write of unknown outcome, seen late": {[]string{put, unknown, line("5", "6", "get", "null", "null", "value", "7"), line("7", "8", "get", "null", "null", "value", "8")}, 0},
		"a write that was seen and undone":      {[]string{put, unknown, line("5", "6", "get", "null", "null", "value", "8"), line("7", "8", "get", "null", "null", "value", "7")}, 1},
		"a swap on condition":                   {[]string{put, line("3", "4", "swap", "9", "7", "done", "null"), line("5", "6", "get", "null", "null", "value", "9")}, 0},
		"a swap refused without a reason":       {[]string{put, line("3", "4", "swap", "9", "7", "refused", "null")}, 1},
		"a swap on a key with a value":          {[]string{put, line("3", "4", "swap", "9", "null", "done", "null")}, 1},
		"a delete":                              {[]string{put, line("3", "4", "delete", "null", "null", "done", "null"), line("5", "6", "get", "null", "null", "value", "null")}, 0},
	} {
		keys, count, err := read(strings.NewReader(strings.Join(history.lines, "\n")))
		if err != nil || count != len(history.lines) {
			t.Fatalf("%s: %d operations, %v", name, count, err)
		}
		if code := check(keys, time.Minute, io.Discard); code != history.code {
			t.Errorf("%s: exit code %d, and not %d", name, code, history.code)
		}
	}
}
