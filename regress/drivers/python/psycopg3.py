"""What a Python program does with a database, through psycopg 3. Connects with the PG* variables, TLS and SCRAM by
libpq. Any failed expectation ends it with code 1 and says which."""

import datetime
import threading

import psycopg
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from expect import NEKI, REPLICA, expect, raises


def expect_error(sqlstate, run):
    return raises(run, psycopg.Error, sqlstate, "sqlstate")


def prepared_statements(conn):
    for id_, v in ((1, "one"), (2, "two"), (1, "one")):
        row = conn.execute("SELECT v, n FROM drv_psycopg WHERE id = %s", (id_,), prepare=True).fetchone()
        expect((row[0], int(row[1])), (v, id_ * 10))
    # Prepared by itself after prepare_threshold executions, in binary as well.
    with conn.cursor(binary=True) as cur:
        for i in range(12):
            expect(cur.execute("SELECT %s::int8 + 1, %s::text", (i, "täxt")).fetchone(), (i + 1, "täxt"))
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    row = conn.execute("SELECT %s::jsonb, %s::timestamptz, %s::bytea, %s::int[], NULL",
                       (Jsonb({"a": [1, 2]}), epoch, b"\0\xff", [1, 2, 3])).fetchone()
    expect(row, ({"a": [1, 2]}, epoch, b"\0\xff", [1, 2, 3], None))


def transactions(conn):
    try:
        with conn.transaction():
            conn.execute("INSERT INTO drv_psycopg VALUES (3, 'gone', 30)")
            raise psycopg.Rollback()
    except psycopg.Rollback:
        pass
    with conn.transaction():
        conn.execute("INSERT INTO drv_psycopg VALUES (4, 'kept', 40)")

        def twice():
            with conn.transaction():
                conn.execute("INSERT INTO drv_psycopg VALUES (4, 'twice', 40)")

        error = expect_error("23505", twice)
        expect(error.diag.constraint_name, "drv_psycopg_pkey")
        expect(error.diag.message_detail, "Key (id)=(4) already exists.")
    expect([r[0] for r in conn.execute("SELECT id FROM drv_psycopg ORDER BY id")], [1, 2, 4])


def pipeline_and_copy(conn):
    with conn.pipeline():
        cursors = [conn.execute("SELECT %s::int", (i,)) for i in range(100)]
    expect([c.fetchone()[0] for c in cursors], list(range(100)))
    with conn.cursor() as cur:
        with cur.copy("COPY drv_psycopg FROM STDIN") as copy:
            for i in range(1000, 3000):
                copy.write_row((i, f"copied {i}", i))
        with cur.copy("COPY (SELECT id FROM drv_psycopg WHERE id >= 1000 ORDER BY id) TO STDOUT") as copy:
            copy.set_types(["int4"])
            expect([row[0] for row in copy.rows()], list(range(1000, 3000)))
    with conn.transaction(), conn.cursor(name="server_side") as cur:
        cur.itersize = 100
        cur.execute("SELECT id FROM drv_psycopg WHERE id >= 1000 ORDER BY id")
        expect(sum(1 for _ in cur), 2000)


def notifications(sender):
    with psycopg.connect(autocommit=True) as listener:
        listener.execute("LISTEN drv_psycopg")
        sender.execute("NOTIFY drv_psycopg, 'hello'")
        expect(next(listener.notifies()).payload, "hello")


def cancelled(conn):
    cancel = threading.Timer(0.1, conn.cancel)
    cancel.start()
    expect_error("57014", lambda: conn.execute("SELECT pg_sleep(10)"))
    cancel.join()
    expect(conn.execute("SELECT 42").fetchone(), (42,))


def replica():
    with psycopg.connect(options=REPLICA, autocommit=True) as conn:
        for _ in range(8):
            expect(conn.execute("SELECT pg_is_in_recovery()", prepare=True).fetchone(), (True,))
        expect_error("25006", lambda: conn.execute("INSERT INTO drv_psycopg VALUES (9, %s, 9)", ("refused",)))
        with conn.transaction():
            expect(conn.execute("SELECT pg_is_in_recovery()").fetchone(), (True,))
        conn.execute("SET __neki.target = 'primary'")
        expect(conn.execute("SELECT pg_is_in_recovery()", prepare=True).fetchone(), (False,))


def main():
    with psycopg.connect(autocommit=True, row_factory=tuple_row) as conn:
        conn.execute("DROP TABLE IF EXISTS drv_psycopg")
        conn.execute("CREATE TABLE drv_psycopg (id int PRIMARY KEY, v text, n numeric)")
        conn.execute("INSERT INTO drv_psycopg VALUES (1, 'one', 10), (2, 'two', 20)")
        prepared_statements(conn)
        transactions(conn)
        pipeline_and_copy(conn)
        notifications(conn)
        cancelled(conn)
        if NEKI:
            replica()
        conn.execute("DROP TABLE drv_psycopg")


main()
