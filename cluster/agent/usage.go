package agent

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// usage remembers the last readings of counters that only grow.
type usage struct {
	pid     int
	ticks   int64
	cpuAt   time.Time
	reads   int64
	writes  int64
	ioAt    time.Time
	ioKnown bool
}

// ticksPerSecond is USER_HZ, which is 100 on every Linux that Go runs on.
const ticksPerSecond = 100

// processes gives the cores used by the postmaster and its children since the last call, and their memory: what each
// has for itself plus, once, the largest shared part. Children that have ended count through the postmaster's sums.
func (u *usage) processes(postmaster int, now time.Time) (cores float64, memory int64) {
	if postmaster == 0 {
		u.pid = 0
		return 0, 0
	}
	ticks, ok := processTicks(postmaster, true)
	if !ok {
		return 0, 0
	}
	private, shared := processMemory(postmaster)
	for _, child := range childrenOf(postmaster) {
		t, _ := processTicks(child, false)
		p, s := processMemory(child)
		ticks, private, shared = ticks+t, private+p, max(shared, s)
	}
	if u.pid == postmaster && now.After(u.cpuAt) {
		cores = max(0, float64(ticks-u.ticks)/ticksPerSecond/now.Sub(u.cpuAt).Seconds())
	}
	u.pid, u.ticks, u.cpuAt = postmaster, ticks, now
	return cores, private + shared
}

// processTicks reads utime and stime of /proc/<pid>/stat, and those of reaped children when wanted.
func processTicks(pid int, children bool) (int64, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]) // the name before it may hold anything
	const utime = 11                                     // counted from the state, the first field after the name
	if len(f) < utime+4 {
		return 0, false
	}
	n := 2
	if children {
		n = 4
	}
	var sum int64
	for _, field := range f[utime : utime+n] {
		v, _ := strconv.ParseInt(string(field), 10, 64) // the kernel writes numbers
		sum += v
	}
	return sum, true
}

// processMemory reads /proc/<pid>/statm: bytes resident of its own, and shared with others.
func processMemory(pid int) (private, shared int64) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0, 0
	}
	f := strings.Fields(string(b))
	if len(f) < 3 {
		return 0, 0
	}
	resident, _ := strconv.ParseInt(f[1], 10, 64) // the kernel writes numbers
	shared, _ = strconv.ParseInt(f[2], 10, 64)
	page := int64(os.Getpagesize())
	return (resident - shared) * page, shared * page
}

func childrenOf(pid int) []int {
	p := strconv.Itoa(pid)
	b, err := os.ReadFile("/proc/" + p + "/task/" + p + "/children")
	if err != nil {
		return nil
	}
	var pids []int
	for _, f := range strings.Fields(string(b)) {
		if child, err := strconv.Atoi(f); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

// diskSpace gives the size of a directory's volume and what users may still write there.
func diskSpace(dir string) (total, free int64) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize
}

// volume gives the reads and writes per second of the block device that holds dir since the last call; 0 where there
// is none (tmpfs, network and overlay file systems).
func (u *usage) volume(dir string, now time.Time) (reads, writes float64) {
	r, w, ok := deviceCounts(dir)
	if ok && u.ioKnown && now.After(u.ioAt) {
		seconds := now.Sub(u.ioAt).Seconds()
		reads, writes = max(0, float64(r-u.reads)/seconds), max(0, float64(w-u.writes)/seconds)
	}
	u.reads, u.writes, u.ioAt, u.ioKnown = r, w, now, ok
	return reads, writes
}

func deviceCounts(dir string) (reads, writes int64, ok bool) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, 0, false
	}
	dev := strconv.Itoa(int(unix.Major(st.Dev))) + ":" + strconv.Itoa(int(unix.Minor(st.Dev)))
	b, err := os.ReadFile("/sys/dev/block/" + dev + "/stat")
	if err != nil {
		return 0, 0, false
	}
	f := strings.Fields(string(b))
	if len(f) < 5 {
		return 0, 0, false
	}
	reads, errR := strconv.ParseInt(f[0], 10, 64)
	writes, errW := strconv.ParseInt(f[4], 10, 64)
	return reads, writes, errR == nil && errW == nil
}
