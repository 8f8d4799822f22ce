package check

// edge says why one transaction must come before another.
type edge uint8

// The dependencies: a later version of what the other wrote, a read of what it wrote, and a write of the version after
// the one that it read.
const (
	ww edge = 1 << iota
	wr
	rw
)

// graph is the dependencies between transactions.
type graph struct {
	out []map[int]edge
}

func newGraph(nodes int) *graph { return &graph{out: make([]map[int]edge, nodes)} }

func (g *graph) link(from, to int, kind edge) {
	if from == to {
		return
	}
	if g.out[from] == nil {
		g.out[from] = map[int]edge{}
	}
	g.out[from][to] |= kind
}

// cycles gives the strongly connected components of more than one node, by the edges of some kinds.
func (g *graph) cycles(kinds edge) [][]int {
	t := tarjan{g: g, kinds: kinds, index: make([]int, len(g.out)), low: make([]int, len(g.out)), on: make([]bool, len(g.out))}
	for n := range g.out {
		if t.index[n] == 0 {
			t.visit(n)
		}
	}
	return t.found
}

// tarjan is one run of Tarjan's algorithm.
type tarjan struct {
	g          *graph
	kinds      edge
	next       int
	index, low []int
	on         []bool
	stack      []int
	found      [][]int
}

// visit goes on by a stack of its own: a long history makes a long path.
func (t *tarjan) visit(root int) {
	type frame struct {
		node int
		to   []int
	}
	enter := func(n int) frame {
		t.next++
		t.index[n], t.low[n] = t.next, t.next
		t.stack, t.on[n] = append(t.stack, n), true
		var to []int
		for m, kind := range t.g.out[n] {
			if kind&t.kinds != 0 {
				to = append(to, m)
			}
		}
		return frame{n, to}
	}
	path := []frame{enter(root)}
	for len(path) > 0 {
		f := &path[len(path)-1]
		if len(f.to) > 0 {
			m := f.to[0]
			f.to = f.to[1:]
			if t.index[m] == 0 {
				path = append(path, enter(m))
			} else if t.on[m] {
				t.low[f.node] = min(t.low[f.node], t.index[m])
			}
			continue
		}
		n := f.node
		path = path[:len(path)-1]
		if len(path) > 0 {
			above := path[len(path)-1].node
			t.low[above] = min(t.low[above], t.low[n])
		}
		if t.low[n] == t.index[n] {
			t.pop(n)
		}
	}
}

func (t *tarjan) pop(root int) {
	var one []int
	for {
		n := t.stack[len(t.stack)-1]
		t.stack, t.on[n] = t.stack[:len(t.stack)-1], false
		one = append(one, n)
		if n == root {
			break
		}
	}
	if len(one) > 1 {
		t.found = append(t.found, one)
	}
}

// reaches tells whether there is a path by edges of some kinds.
func (g *graph) reaches(from, to int, kinds edge) bool {
	seen := map[int]bool{from: true}
	for todo := []int{from}; len(todo) > 0; {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if n == to {
			return true
		}
		for m, kind := range g.out[n] {
			if kind&kinds != 0 && !seen[m] {
				seen[m] = true
				todo = append(todo, m)
			}
		}
	}
	return false
}
