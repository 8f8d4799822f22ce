package pgproc

import (
	"io"
	"os"
)

// RotateLog moves the log's content to postgres.log.1 when it has grown beyond the limit. The server keeps its open
// descriptor (a pipe would tie it to this process), so the file is copied and cut; lines that are written in between
// are lost.
func (p *Instance) RotateLog() error {
	st, err := os.Stat(p.LogFile())
	if err != nil {
		if os.IsNotExist(err) {
			return nil
		}
		return err
	}
	if st.Size() <= p.cfg.LogMaxBytes {
		return nil
	}
	if err := copyFile(p.LogFile(), p.LogFile()+".1"); err != nil {
		return err
	}
	return os.Truncate(p.LogFile(), 0)
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // opened for reading
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := out.Close(); err == nil {
			err = cerr
		}
	}()
	_, err = io.Copy(out, in)
	return err
}
