// Works on files of a directory with many concurrent goroutines, and checks everything that it reads back.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(holds bool, words ...any) {
	if !holds {
		panic(fmt.Sprintln(words...))
	}
}

func content(seed, length int) []byte {
	data := make([]byte, length)
	for at := range data {
		data[at] = byte(seed*31 + at*7 + at>>8)
	}
	return data
}

// Whole files: written, renamed over each other, copied by the kernel, read back.
func whole(top string, number int) {
	directory := filepath.Join(top, fmt.Sprint("whole", number))
	must(os.MkdirAll(filepath.Join(directory, "a/b"), 0o755))
	for round := 0; round < 20; round++ {
		name := filepath.Join(directory, "file")
		wanted := content(number+round, 1000*round*round)
		must(os.WriteFile(name+".new", wanted, 0o640))
		must(os.Rename(name+".new", name))
		from, err := os.Open(name)
		must(err)
		to, err := os.Create(filepath.Join(directory, "a/b", fmt.Sprint(round)))
		must(err)
		count, err := io.Copy(to, from)
		must(err)
		check(count == int64(len(wanted)), "copied", count)
		must(from.Close())
		must(to.Close())
		found, err := os.ReadFile(to.Name())
		must(err)
		check(bytes.Equal(found, wanted), "file", number, round)
	}
	listed, err := os.ReadDir(filepath.Join(directory, "a/b"))
	must(err)
	check(len(listed) == 20, "listed", len(listed))
	when := time.Unix(981173106, 123456789)
	must(os.Chtimes(filepath.Join(directory, "file"), when, when))
	must(os.Link(filepath.Join(directory, "file"), filepath.Join(directory, "hard")))
	must(os.Symlink("hard", filepath.Join(directory, "soft")))
	must(os.Chmod(filepath.Join(directory, "soft"), 0o400))
	info, err := os.Stat(filepath.Join(directory, "soft"))
	must(err)
	check(info.ModTime().Equal(when) && info.Mode() == 0o400, "stat", info.ModTime(), info.Mode())
	check(info.Sys().(*syscall.Stat_t).Nlink == 2, "links")
	must(os.RemoveAll(directory))
}

// One file that all goroutines append to.
func appended(top string, number int, each int) {
	file, err := os.OpenFile(filepath.Join(top, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	must(err)
	for round := 0; round < each; round++ {
		_, err := fmt.Fprintf(file, "%03d %05d\n", number, round)
		must(err)
	}
	must(file.Close())
}

// One file that all goroutines map, each with its own pages, and also read by calls.
func mapped(top string, number int) {
	file, err := os.OpenFile(filepath.Join(top, "mapped"), os.O_RDWR, 0)
	must(err)
	defer file.Close()
	page := os.Getpagesize()
	data, err := syscall.Mmap(int(file.Fd()), 0, page*16, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	must(err)
	own := data[number*page : (number+1)*page]
	for round := 0; round < 20; round++ {
		wanted := content(number*100+round, page)
		copy(own, wanted)
		found := make([]byte, page)
		_, err := file.ReadAt(found, int64(number*page))
		must(err)
		check(bytes.Equal(found, wanted), "mapped, then read", number, round)
		_, err = file.WriteAt(wanted[:100], int64(number*page+50))
		must(err)
		check(bytes.Equal(own[50:150], wanted[:100]), "written, then mapped", number, round)
	}
	must(syscall.Munmap(data))
}

// A counter in a file, under flock of open files.
func counted(top string) {
	file, err := os.OpenFile(filepath.Join(top, "counter"), os.O_RDWR|os.O_CREATE, 0o644)
	must(err)
	defer file.Close()
	for round := 0; round < 20; round++ {
		must(syscall.Flock(int(file.Fd()), syscall.LOCK_EX))
		text := make([]byte, 8)
		count, err := file.ReadAt(text, 0)
		check(err == nil || err == io.EOF, err)
		value := 0
		fmt.Sscan(string(text[:count]), &value)
		_, err = file.WriteAt([]byte(fmt.Sprintf("%-8d", value+1)), 0)
		must(err)
		must(syscall.Flock(int(file.Fd()), syscall.LOCK_UN))
	}
}

func main() {
	top := os.Args[1]
	must(os.WriteFile(filepath.Join(top, "mapped"), make([]byte, 16*os.Getpagesize()), 0o644))
	var all sync.WaitGroup
	for number := 0; number < 16; number++ {
		for _, work := range []func(){
			func() { whole(top, number) },
			func() { appended(top, number, 200) },
			func() { mapped(top, number) },
			func() { counted(top) },
		} {
			all.Add(1)
			go func(work func()) {
				defer all.Done()
				work()
			}(work)
		}
		// Older versions of the language share the loop variable between iterations.
		all.Wait()
	}
	for number := 0; number < 16; number++ {
		all.Add(1)
		go func(number int) {
			defer all.Done()
			whole(top, number)
			appended(top, number, 100)
			mapped(top, number)
			counted(top)
		}(number)
	}
	all.Wait()
	log, err := os.ReadFile(filepath.Join(top, "log"))
	must(err)
	check(len(log) == 16*300*10, "log", len(log))
	lines := map[string]int{}
	for _, line := range bytes.Split(bytes.TrimSpace(log), []byte("\n")) {
		lines[string(line)]++
	}
	check(len(lines) == 16*200, "lines", len(lines))
	counter, err := os.ReadFile(filepath.Join(top, "counter"))
	must(err)
	check(string(bytes.TrimSpace(counter)) == "640", "counter", string(counter))
	for _, name := range []string{"log", "counter", "mapped"} {
		must(os.Remove(filepath.Join(top, name)))
	}
	fmt.Println("all well")
}
