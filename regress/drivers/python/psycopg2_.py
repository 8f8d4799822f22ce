"""What a Python program does with a database, through psycopg2. Connects with the PG* variables by libpq."""

import io
import select

import psycopg2
import psycopg2.extensions
import psycopg2.extras

from expect import NEKI, REPLICA, expect, raises


def run(conn, sql, args=None):
    with conn.cursor() as cur:
        cur.execute(sql, args)
        return cur.fetchall() if cur.description else None


def refused(sqlstate, action):
    return raises(action, psycopg2.Error, sqlstate, "pgcode")


def prepared(conn):
    run(conn, "PREPARE by_id (int) AS SELECT v FROM drv_psycopg2 WHERE id = $1")
    conn.commit()
    for id_, v in ((1, "one"), (2, "two"), (1, "one")):
        expect(run(conn, "EXECUTE by_id (%s)", (id_,)), [(v,)])
        conn.commit()
    run(conn, "DEALLOCATE by_id")
    conn.commit()
    refused("26000", lambda: run(conn, "EXECUTE by_id (1)"))
    conn.rollback()


def transactions(conn):
    run(conn, "INSERT INTO drv_psycopg2 VALUES (3, 'gone')")
    conn.rollback()
    run(conn, "INSERT INTO drv_psycopg2 VALUES (4, 'kept')")
    run(conn, "SAVEPOINT s")
    error = refused("23505", lambda: run(conn, "INSERT INTO drv_psycopg2 VALUES (4, 'twice')"))
    expect(error.diag.constraint_name, "drv_psycopg2_pkey")
    refused("25P02", lambda: run(conn, "SELECT 1"))
    run(conn, "ROLLBACK TO s")
    conn.commit()
    expect(run(conn, "SELECT id FROM drv_psycopg2 ORDER BY id"), [(1,), (2,), (4,)])
    conn.commit()
    conn.set_session(isolation_level="SERIALIZABLE", readonly=True)
    expect(run(conn, "SHOW transaction_isolation"), [("serializable",)])
    refused("25006", lambda: run(conn, "INSERT INTO drv_psycopg2 VALUES (5, 'refused')"))
    conn.rollback()
    conn.set_session(isolation_level="DEFAULT", readonly="DEFAULT")


def streaming(conn):
    with conn.cursor(name="server_side") as cur:
        cur.itersize = 100
        cur.execute("SELECT generate_series(1, 1000)")
        expect([r[0] for r in cur], list(range(1, 1001)))
    conn.commit()
    holder = psycopg2.connect("")  # a held cursor keeps its connection to the end of the session
    with holder.cursor(name="held", withhold=True, scrollable=True) as cur:
        cur.execute("SELECT generate_series(1, 10)")
        holder.commit()
        expect(cur.fetchmany(3), [(1,), (2,), (3,)])
        cur.scroll(-2)
        expect(cur.fetchone(), (2,))
    holder.close()
    with conn.cursor() as cur:
        cur.copy_expert("COPY drv_psycopg2 FROM STDIN (FORMAT csv)", io.StringIO("".join(f"{i},copied\n" for i in range(100, 2100))))
        out = io.StringIO()
        cur.copy_expert("COPY (SELECT id FROM drv_psycopg2 WHERE id >= 100 ORDER BY id) TO STDOUT", out)
        expect(out.getvalue(), "".join(f"{i}\n" for i in range(100, 2100)))
        refused("22P02", lambda: cur.copy_expert("COPY drv_psycopg2 FROM STDIN (FORMAT csv)", io.StringIO("x,bad\n")))
    conn.rollback()
    with conn.cursor() as cur:
        psycopg2.extras.execute_values(cur, "INSERT INTO drv_psycopg2 VALUES %s", [(i, "many") for i in range(10, 40)])
        expect(cur.rowcount, 30)
    conn.rollback()


def notifications():
    listener, sender = psycopg2.connect(""), psycopg2.connect("")
    listener.autocommit = sender.autocommit = True
    run(listener, "LISTEN drv_psycopg2")
    run(sender, "NOTIFY drv_psycopg2, 'hello'")
    while not listener.notifies:
        expect(select.select([listener], [], [], 10)[0], [listener])
        listener.poll()
    expect(listener.notifies[0].payload, "hello")
    listener.close()
    sender.close()


def cancelled(conn):
    run(conn, "SET LOCAL statement_timeout = 50")
    refused("57014", lambda: run(conn, "SELECT pg_sleep(10)"))
    conn.rollback()
    expect(run(conn, "SHOW statement_timeout"), [("0",)])
    conn.commit()
    # A cancel as the driver sends it, while an asynchronous connection waits for its answer.
    async_conn = psycopg2.connect("", async_=True)
    psycopg2.extras.wait_select(async_conn)
    cur = async_conn.cursor()
    cur.execute("SELECT pg_sleep(10)")
    while not select.select([async_conn], [], [], 0.05)[0]:  # a cancel may come before its statement
        async_conn.cancel()
    refused("57014", lambda: psycopg2.extras.wait_select(async_conn))
    async_conn.close()


def replica():
    conn = psycopg2.connect(options=REPLICA)
    expect(run(conn, "SELECT pg_is_in_recovery(), count(*) FROM drv_psycopg2"), [(True, 3)])
    conn.commit()
    refused("25006", lambda: run(conn, "INSERT INTO drv_psycopg2 VALUES (9, 'refused')"))
    conn.close()


def main():
    conn = psycopg2.connect("")
    run(conn, "DROP TABLE IF EXISTS drv_psycopg2")
    run(conn, "CREATE TABLE drv_psycopg2 (id int PRIMARY KEY, v text)")
    run(conn, "INSERT INTO drv_psycopg2 VALUES (1, 'one'), (2, 'two')")
    conn.commit()
    prepared(conn)
    transactions(conn)
    streaming(conn)
    notifications()
    cancelled(conn)
    if NEKI:
        replica()
    run(conn, "DROP TABLE drv_psycopg2")
    conn.commit()
    conn.close()


main()
