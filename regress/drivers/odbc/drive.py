"""What a program does with a database through ODBC: psqlODBC under unixODBC, driven by pyodbc. TLS and SCRAM by libpq."""

import glob
import os
import sys

import pyodbc


def expect(got, want):
    if got != want:
        raise AssertionError(f"got {got!r}, want {want!r}")


def connect(**more):
    driver = glob.glob("/usr/lib/*/odbc/psqlodbcw.so")[0]
    parts = {"Driver": driver, "Servername": os.environ["PGHOST"], "Port": os.environ["PGPORT"], "Database": os.environ["PGDATABASE"],
             "UID": os.environ["PGUSER"], "PWD": os.environ["PGPASSWORD"], "SSLmode": os.environ["PGSSLMODE"], **more}
    return pyodbc.connect(";".join(f"{name}={value}" for name, value in parts.items()), timeout=10)


def refused(sqlstate, run):
    try:
        run()
    except pyodbc.Error as error:
        expect(error.args[0], sqlstate)
        return
    raise AssertionError(f"no error, want {sqlstate}")


def prepared(conn):
    cur = conn.cursor()
    for id_, v in ((1, "one"), (2, "two"), (1, "one")):
        expect(cur.execute("SELECT v FROM drv_odbc WHERE id = ?", id_).fetchval(), v)
        conn.commit()
    expect(tuple(cur.execute("SELECT ?::int + 1, ?::text", 41, "täxt").fetchone()), (42, "täxt"))
    cur.executemany("INSERT INTO drv_odbc VALUES (?, ?)", [(i, "many") for i in range(1000, 1100)])
    expect(cur.execute("SELECT count(*) FROM drv_odbc WHERE v = 'many'").fetchval(), 100)
    conn.rollback()


def transactions(conn):
    cur = conn.cursor()
    cur.execute("INSERT INTO drv_odbc VALUES (3, 'gone')")
    conn.rollback()
    cur.execute("INSERT INTO drv_odbc VALUES (4, 'kept')")
    cur.execute("SAVEPOINT s")
    refused("23505", lambda: conn.cursor().execute("INSERT INTO drv_odbc VALUES (4, 'twice')"))
    conn.cursor().execute("ROLLBACK TO s")
    conn.commit()
    expect([r[0] for r in conn.cursor().execute("SELECT id FROM drv_odbc ORDER BY id")], [1, 2, 4])
    conn.commit()


def streaming():
    # Rows in portions of 100, by DECLARE and FETCH.
    with connect(UseDeclareFetch="1", Fetch="100") as conn:
        expect([r[0] for r in conn.cursor().execute("SELECT generate_series(1, 1000)")], list(range(1, 1001)))


def timeout(conn):
    conn.cursor().execute("SET LOCAL statement_timeout = 50")
    refused("57014", lambda: conn.cursor().execute("SELECT pg_sleep(10)"))
    conn.rollback()


def replica():
    with connect(ConnSettings="SET __neki.target=replica") as conn:
        conn.autocommit = True
        for _ in range(3):
            row = conn.cursor().execute("SELECT pg_is_in_recovery()::text, count(*) FROM drv_odbc").fetchone()
            expect(row[0], "true")
        refused("25006", lambda: conn.cursor().execute("INSERT INTO drv_odbc VALUES (9, 'refused')"))


def main():
    conn = connect()
    conn.cursor().execute("DROP TABLE IF EXISTS drv_odbc")
    conn.cursor().execute("CREATE TABLE drv_odbc (id int PRIMARY KEY, v text)")
    conn.cursor().execute("INSERT INTO drv_odbc VALUES (1, 'one'), (2, 'two')")
    conn.commit()
    prepared(conn)
    transactions(conn)
    streaming()
    timeout(conn)
    if sys.argv[1:] == ["neki"]:
        replica()
    conn.cursor().execute("DROP TABLE drv_odbc")
    conn.commit()
    conn.close()


main()
