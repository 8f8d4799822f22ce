-- A shop: types, tables of every kind, constraints, indexes, views, functions, triggers, policies, comments.
CREATE SCHEMA drv_shop;
SET search_path = drv_shop;

CREATE TYPE state AS ENUM ('open', 'paid', 'sent');
CREATE TYPE address AS (street text, town text);
CREATE DOMAIN amount AS numeric(12, 2) CHECK (VALUE >= 0);
CREATE SEQUENCE numbers START 1000 INCREMENT 10;

CREATE TABLE customers (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  email text NOT NULL UNIQUE,
  home address,
  tags text[] DEFAULT '{}',
  extra jsonb,
  joined timestamptz NOT NULL DEFAULT '2024-02-29 12:00+00',
  lower_email text GENERATED ALWAYS AS (lower(email)) STORED
);
COMMENT ON TABLE customers IS 'who buys; it''s quoted';
COMMENT ON COLUMN customers.home IS E'line\nbreak \\ backslash';

CREATE TABLE orders (
  id bigint NOT NULL DEFAULT nextval('numbers'),
  customer bigint NOT NULL REFERENCES customers ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
  state state NOT NULL DEFAULT 'open',
  total amount,
  day date NOT NULL,
  PRIMARY KEY (id, day)
) PARTITION BY RANGE (day);
CREATE TABLE orders_2023 PARTITION OF orders FOR VALUES FROM ('2023-01-01') TO ('2024-01-01');
CREATE TABLE orders_rest PARTITION OF orders DEFAULT;
CREATE INDEX orders_open ON orders (customer) WHERE state = 'open';
CREATE INDEX customers_extra ON customers USING gin (extra);
CREATE STATISTICS orders_stats (dependencies) ON customer, state FROM orders_rest;

CREATE TABLE events (at timestamp, note bytea, EXCLUDE USING gist (tsrange(at, at + interval '1 hour') WITH &&));
CREATE TABLE special_events (kind "char") INHERITS (events);

CREATE FUNCTION total_of(who bigint) RETURNS amount LANGUAGE sql STABLE AS $$
  SELECT coalesce(sum(total), 0)::drv_shop.amount FROM drv_shop.orders WHERE customer = who;
$$;
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
  NEW.tags := NEW.tags || 'touched'::text; -- a ';' and a $$ within
  RETURN NEW;
END;
$body$;
CREATE TRIGGER touch BEFORE UPDATE ON customers FOR EACH ROW WHEN (OLD.tags IS DISTINCT FROM NEW.tags) EXECUTE FUNCTION touch();
CREATE PROCEDURE pay(number bigint) LANGUAGE sql BEGIN ATOMIC UPDATE orders SET state = 'paid' WHERE id = number; END;
CREATE AGGREGATE longest(text) (sfunc = textcat, stype = text, initcond = '');

CREATE VIEW spenders AS SELECT c.email, total_of(c.id) AS total FROM customers c;
CREATE MATERIALIZED VIEW per_day AS SELECT day, count(*) AS orders FROM orders GROUP BY day WITH DATA;
CREATE RULE no_events AS ON DELETE TO events DO INSTEAD NOTHING;
ALTER TABLE customers ENABLE ROW LEVEL SECURITY;
CREATE POLICY all_of_them ON customers USING (true);
GRANT SELECT ON customers TO PUBLIC;

INSERT INTO customers (email, home, tags, extra)
SELECT format('Customer%s@example.com', i), row('Street ' || i, NULL::text)::address, ARRAY['a,b', 'c"d', NULL], jsonb_build_object('n', i)
FROM generate_series(1, 200) i;
INSERT INTO orders (customer, total, day) SELECT 1 + i % 200, i, date '2023-06-01' + i FROM generate_series(0, 999) i;
INSERT INTO events VALUES ('2024-01-01 00:00', '\x00ff5c0a'), ('infinity', NULL);
INSERT INTO special_events VALUES ('2024-01-02 00:00', E'\\\\x', 'k');
REFRESH MATERIALIZED VIEW per_day;
