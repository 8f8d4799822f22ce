package sim

import (
	"os"
	"strconv"
	"testing"

	"neki/cluster/decide"
)

// rare flaws need tens of thousands of schedules; they are looked for when NEKI_SIM_BUDGET says how many may be run.
var rare = map[string]bool{
	"H9 LSN alone decides": true, "H5 ... and counts at once": true, "forgotten outgoing cohort": true,
	"late orders of standbys": true,
}

// from is where to begin the search, near a seed that finds it.
var from = map[string]uint64{"H17 open before barrier": 2400, "H3 grow in Postgres first": 1100, "H8 whoever answers is promoted": 480}

// TestFlawsAreFound puts known bugs of other cluster managers back in, one at a time: the simulator must find each.
func TestFlawsAreFound(t *testing.T) {
	budget, long := uint64(20_000), false
	if text := os.Getenv("NEKI_SIM_BUDGET"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		budget, long = n, true
	}
	flaws := map[string]decide.Flaws{
		"H3 grow in Postgres first":       {GrowPostgresFirst: true},
		"H3 shrink without a barrier":     {ShrinkWithoutBarrier: true},
		"H5 rewind in the cohort":         {RewindInCohort: true},
		"H5 ... and counts at once":       {RewindInCohort: true, NoFloor: true},
		"H7 promotion without pledges":    {NoPledge: true},
		"H8 whoever answers is promoted":  {AnyQuorum: true},
		"H9 LSN alone decides":            {LSNAlone: true},
		"start from memory":               {StartFromMemory: true},
		"pledge without a cut":            {PledgeWithoutCut: true},
		"H17 open before barrier":         {OpenBeforeBarrier: true},
		"forgotten promises":              {ForgetPromises: true},
		"forgotten outgoing cohort":       {ForgetOutgoing: true},
		"writes that compare nothing":     {UnconditionalWrites: true},
		"rdonly counts":                   {PromoteRdonly: true},
		"late orders of standbys":         {IgnoreOrderOfLead: true},
		"follow in spite of a divergence": {FollowWithoutAncestry: true},
	}
	for name, f := range flaws {
		t.Run(name, func(t *testing.T) {
			if rare[name] && !long {
				t.Skip("set NEKI_SIM_BUDGET to look for it")
			}
			found := search(from[name], budget, f)
			if found == nil {
				t.Fatalf("%d schedules did not find it", budget)
			}
			t.Logf("seed %d: %s: %s", found.Schedule.Seed, found.Invariant, found.Text)
			if os.Getenv("NEKI_SIM_SHOW") != "" {
				t.Log(Shrink(found.Schedule, f))
			}
		})
	}
}
