-- EXPLAIN (NEKI_PLAN): where a statement would run and why; plain EXPLAIN: Postgres's own.
CREATE TABLE explained (id int PRIMARY KEY, v text);
EXPLAIN (COSTS OFF) SELECT * FROM explained WHERE id = 1;
EXPLAIN (COSTS OFF) UPDATE explained SET v = 'x';
EXPLAIN (COSTS OFF, ANALYZE, TIMING OFF, SUMMARY OFF) SELECT count(*) FROM explained;

-- The primary, by default.
EXPLAIN (NEKI_PLAN, COSTS OFF) SELECT * FROM explained WHERE id = 1;
EXPLAIN (NEKI_PLAN, COSTS OFF) INSERT INTO explained VALUES (1, 'x');

-- A virtual relation, a local statement.
EXPLAIN (NEKI_PLAN, COSTS OFF) SELECT node FROM neki.replicas WHERE state = 'serving' ORDER BY node LIMIT 1;
EXPLAIN SELECT node FROM neki.replicas;

-- It runs nothing.
SELECT count(*) FROM explained;

-- auto: what writes goes to the primary.
SET __neki.target = 'auto';
EXPLAIN (NEKI_PLAN, COSTS OFF) DELETE FROM explained;
RESET __neki.target;

EXPLAIN (NEKI_PLANS) SELECT 1;
DROP TABLE explained;
