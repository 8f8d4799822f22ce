"""What a Python program does with a database, through SQLAlchemy on psycopg2."""

import psycopg2.errors
from sqlalchemy import Column, Integer, MetaData, Table, Text, create_engine, exc, func, inspect, select, text
from sqlalchemy.orm import Session, declarative_base

from expect import NEKI, REPLICA, expect

Base = declarative_base()


class Row(Base):
    __tablename__ = "drv_sqlalchemy"
    id = Column(Integer, primary_key=True)
    v = Column(Text, nullable=False)


def transactions(engine):
    with Session(engine) as session:
        session.add(Row(id=3, v="gone"))
        session.flush()
        session.rollback()
        session.add(Row(id=4, v="kept"))
        session.flush()
        try:
            with session.begin_nested():
                session.execute(text("INSERT INTO drv_sqlalchemy VALUES (4, 'twice')"))
        except exc.IntegrityError as error:
            expect(type(error.orig), psycopg2.errors.UniqueViolation)
        else:
            raise AssertionError("no error for a duplicate key")
        session.commit()
        expect(session.scalars(select(Row.id).order_by(Row.id)).all(), [1, 2, 4])


def many_and_streams(engine):
    table = Table("drv_sqlalchemy", MetaData(), autoload_with=engine)
    expect(inspect(engine).get_pk_constraint("drv_sqlalchemy")["name"], "drv_sqlalchemy_pkey")
    with engine.begin() as conn:
        conn.execute(table.insert(), [{"id": i, "v": "many"} for i in range(1000, 2000)])
    with engine.connect().execution_options(stream_results=True, yield_per=100) as conn:
        got = [r.id for r in conn.execute(select(table.c.id).where(table.c.id >= 1000).order_by(table.c.id))]
        expect(got, list(range(1000, 2000)))
    with engine.begin() as conn:
        deleted = conn.execute(table.delete().where(table.c.id >= 1000).returning(table.c.id)).all()
        expect(len(deleted), 1000)
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as conn:
        expect(conn.execute(text("SHOW transaction_isolation")).scalar(), "repeatable read")


def timeout(engine):
    with engine.connect() as conn:
        conn.execute(text("SET LOCAL statement_timeout = 50"))
        try:
            conn.execute(text("SELECT pg_sleep(10)"))
        except exc.OperationalError as error:
            expect(error.orig.pgcode, "57014")
        else:
            raise AssertionError("no timeout")


def replica():
    engine = create_engine("postgresql+psycopg2://", connect_args={"options": REPLICA}, pool_pre_ping=True)
    for _ in range(3):
        with engine.connect() as conn:
            expect(conn.execute(select(func.pg_is_in_recovery(), func.count()).select_from(Row)).one(), (True, 3))
    engine.dispose()


def main():
    engine = create_engine("postgresql+psycopg2://", pool_size=3, pool_pre_ping=True)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Row(id=1, v="one"), Row(id=2, v="two")])
        session.commit()
    transactions(engine)
    many_and_streams(engine)
    timeout(engine)
    if NEKI:
        replica()
    Base.metadata.drop_all(engine)
    engine.dispose()


main()
