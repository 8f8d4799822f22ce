"""What the Python programs share: expectations that end the program, and where they run."""

import sys

# Whether this is a neki, whose replicas a session can ask for.
NEKI = sys.argv[1:] == ["neki"]
REPLICA = "-c __neki.target=replica -c __neki.replica_consistency=bounded:30s"


def expect(got, want):
    if got != want:
        raise AssertionError(f"got {got!r}, want {want!r}")


def raises(run, kind, sqlstate, attribute):
    """Runs and expects an error of a kind whose attribute holds this SQLSTATE."""
    try:
        run()
    except kind as error:
        expect(getattr(error, attribute), sqlstate)
        return error
    raise AssertionError(f"no error, want {sqlstate}")
