"""What a Python program does with a database, through asyncpg, which prepares every statement and speaks binary."""

import asyncio
import os
import ssl

import asyncpg

from expect import NEKI, expect


def tls():
    if os.environ["PGSSLMODE"] == "disable":
        return False
    return ssl.create_default_context(cafile=os.environ["PGSSLROOTCERT"])


async def connect(**settings):
    return await asyncpg.connect(ssl=tls(), timeout=10, server_settings=settings)


async def refused(sqlstate, awaitable):
    try:
        await awaitable
    except asyncpg.PostgresError as error:
        expect(error.sqlstate, sqlstate)
        return error
    raise AssertionError(f"no error, want {sqlstate}")


async def prepared(conn):
    by_id = await conn.prepare("SELECT v FROM drv_asyncpg WHERE id = $1")
    for id_, v in ((1, "one"), (2, "two"), (1, "one")):
        async with conn.transaction():
            expect(await by_id.fetchval(id_), v)
    expect(await conn.fetchval("SELECT $1::int[] || $2::int", [1, 2], 3), [1, 2, 3])
    # A change of the table invalidates the statement on the server; the driver's second try finds it anew.
    await conn.execute("ALTER TABLE drv_asyncpg ADD COLUMN w int")
    expect(len(await conn.fetchrow("SELECT * FROM drv_asyncpg WHERE id = $1", 1)), 3)
    await conn.execute("ALTER TABLE drv_asyncpg DROP COLUMN w")
    await conn.reload_schema_state()
    expect(len(await conn.fetchrow("SELECT * FROM drv_asyncpg WHERE id = $1", 1)), 2)


async def transactions(conn):
    outer = conn.transaction()
    await outer.start()
    await conn.execute("INSERT INTO drv_asyncpg VALUES (3, 'gone')")
    await outer.rollback()
    async with conn.transaction():
        await conn.execute("INSERT INTO drv_asyncpg VALUES ($1, 'kept')", 4)

        async def twice():
            async with conn.transaction():
                await conn.execute("INSERT INTO drv_asyncpg VALUES ($1, 'twice')", 4)

        expect((await refused("23505", twice())).constraint_name, "drv_asyncpg_pkey")
    expect([r[0] for r in await conn.fetch("SELECT id FROM drv_asyncpg ORDER BY id")], [1, 2, 4])
    async with conn.transaction(isolation="serializable", readonly=True, deferrable=True):
        expect(await conn.fetchval("SHOW transaction_isolation"), "serializable")


async def streaming(conn):
    async with conn.transaction():
        expect([r[0] async for r in conn.cursor("SELECT generate_series(1, 1000)", prefetch=50)], list(range(1, 1001)))
        cursor = await conn.cursor("SELECT generate_series(1, 10)")
        expect(await cursor.forward(3), 3)
        expect((await cursor.fetchrow())[0], 4)
    records = [(i, "copied") for i in range(100, 2100)]
    expect(await conn.copy_records_to_table("drv_asyncpg", records=records), "COPY 2000")
    got = bytearray()

    async def take(data):
        got.extend(data)

    await conn.copy_from_query("SELECT id FROM drv_asyncpg WHERE id >= $1 ORDER BY id", 100, output=take)
    expect(bytes(got), b"".join(b"%d\n" % i for i in range(100, 2100)))
    await conn.executemany("UPDATE drv_asyncpg SET v = $2 WHERE id = $1", [(i, "many") for i in range(100, 200)])
    expect(await conn.fetchval("SELECT count(*) FROM drv_asyncpg WHERE v = 'many'"), 100)
    await conn.execute("DELETE FROM drv_asyncpg WHERE id >= 100")


async def notifications():
    listener, sender = await connect(), await connect()
    came = asyncio.get_running_loop().create_future()
    await listener.add_listener("drv_asyncpg", lambda conn, pid, channel, payload: came.set_result(payload))
    await sender.execute("SELECT pg_notify('drv_asyncpg', 'hello')")
    expect(await asyncio.wait_for(came, 10), "hello")
    await listener.close()
    await sender.close()


async def cancelled(conn):
    try:
        await conn.fetchval("SELECT pg_sleep(10)", timeout=0.1)  # the driver sends a cancel
    except asyncio.TimeoutError:
        pass
    else:
        raise AssertionError("no timeout")
    expect(await conn.fetchval("SELECT 42"), 42)


async def pool():
    async with asyncpg.create_pool(ssl=tls(), min_size=1, max_size=6, timeout=10) as p:
        got = await asyncio.gather(*(p.fetchval("SELECT $1::int", i) for i in range(60)))
    expect(got, list(range(60)))  # and each release ran the driver's reset: UNLISTEN, CLOSE ALL, RESET ALL, unlock


async def replica():
    conn = await connect(**{"__neki.target": "replica", "__neki.replica_consistency": "bounded:30s"})
    for _ in range(4):
        expect(tuple(await conn.fetchrow("SELECT pg_is_in_recovery(), count(*) FROM drv_asyncpg")), (True, 3))
    await refused("25006", conn.execute("INSERT INTO drv_asyncpg VALUES (9, 'refused')"))
    await conn.close()


async def main():
    conn = await connect()
    await conn.execute("DROP TABLE IF EXISTS drv_asyncpg; CREATE TABLE drv_asyncpg (id int PRIMARY KEY, v text)")
    await conn.execute("INSERT INTO drv_asyncpg VALUES (1, 'one'), (2, 'two')")
    await prepared(conn)
    await transactions(conn)
    await streaming(conn)
    await notifications()
    await cancelled(conn)
    await pool()
    if NEKI:
        await replica()
    await conn.execute("DROP TABLE drv_asyncpg")
    await conn.close()


asyncio.run(main())
