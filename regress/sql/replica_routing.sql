-- Where statements run. pg_is_in_recovery() is true on a replica and false on a primary.
CREATE TABLE routing (id int PRIMARY KEY, v text);
INSERT INTO routing VALUES (1, 'one'), (2, 'two'), (3, 'three');
CREATE SEQUENCE routing_seq;
CREATE FUNCTION routing_writes(int) RETURNS bool LANGUAGE plpgsql VOLATILE AS
  'BEGIN INSERT INTO routing VALUES ($1, ''by function''); RETURN pg_is_in_recovery(); END';
CREATE FUNCTION routing_reads() RETURNS bool LANGUAGE sql STABLE AS 'SELECT pg_is_in_recovery()';
-- After a change of functions those of users count as writers until they were read: a reload returns when they are.
CALL neki.reload();

-- By default everything goes to the primary.
SELECT pg_is_in_recovery();

-- From here on every read must see what this session wrote.
SET __neki.replica_consistency = 'session';
SET __neki.replica_wait = '10s';

SET __neki.target = 'replica';
SELECT pg_is_in_recovery();
SHOW transaction_read_only;
SELECT id, v, pg_is_in_recovery() FROM routing ORDER BY id;
SELECT routing_reads();
WITH r AS (SELECT * FROM routing) SELECT count(*), pg_is_in_recovery() FROM r;
TABLE routing ORDER BY id LIMIT 1;
VALUES (pg_is_in_recovery());
COPY (SELECT pg_is_in_recovery()) TO STDOUT;

-- Prepared statements follow the target, whichever it was when they were made.
PREPARE by_id(int) AS SELECT v, pg_is_in_recovery() FROM routing WHERE id = $1;
EXECUTE by_id(1);
SET __neki.target = 'primary';
EXECUTE by_id(2);
SET __neki.target = 'replica';
EXECUTE by_id(3);
DEALLOCATE by_id;

-- Inside a transaction the instance stays the same.
BEGIN;
SELECT inet_server_port() AS port, pg_is_in_recovery() AS recovering \gset
SELECT :'recovering' AS on_replica, inet_server_port() = :port AS same;
SELECT inet_server_port() = :port AS same;
SAVEPOINT a;
SELECT inet_server_port() = :port AS same;
ROLLBACK TO a;
SELECT inet_server_port() = :port AS same;
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SELECT pg_is_in_recovery(), count(*) FROM routing;
DECLARE c CURSOR FOR SELECT id FROM routing ORDER BY id;
FETCH 2 FROM c;
COMMIT;

-- Affinity: the same replica statement after statement.
SET __neki.replica_affinity = 'session';
SELECT inet_server_port() AS port \gset
SELECT inet_server_port() = :port AS same;
SELECT inet_server_port() = :port AS same;
SELECT inet_server_port() = :port AS same;
SELECT inet_server_port() = :port AS same;
RESET __neki.replica_affinity;

-- The strictest tiers are met by replicas that follow closely.
SET __neki.replica_recency = 'require';
SELECT pg_is_in_recovery();
SET __neki.replica_recency = 'off';
SELECT pg_is_in_recovery();
RESET __neki.replica_recency;
SET __neki.replica_locality = 'off';
SELECT pg_is_in_recovery();
RESET __neki.replica_locality;
SET __neki.replica_consistency = 'bounded:30s';
SELECT pg_is_in_recovery();
SET __neki.replica_consistency = 'session';

-- rdonly instances are their own kind.
SET __neki.target = 'rdonly';
SELECT pg_is_in_recovery();

-- auto: proven reads to a replica, all else to the primary.
SET __neki.target = 'auto';
SELECT pg_is_in_recovery();
SELECT routing_reads();
INSERT INTO routing VALUES (10, 'ten') RETURNING id, pg_is_in_recovery();
SELECT v, pg_is_in_recovery() FROM routing WHERE id = 10;
UPDATE routing SET v = 'TEN' WHERE id = 10 RETURNING v, pg_is_in_recovery();
SELECT v, pg_is_in_recovery() FROM routing WHERE id = 10;
WITH w AS (INSERT INTO routing VALUES (11, 'eleven') RETURNING id) SELECT id, pg_is_in_recovery() FROM w;
SELECT id, pg_is_in_recovery() FROM routing WHERE id = 1 FOR UPDATE;
SELECT id, pg_is_in_recovery() FROM routing WHERE id = 1 FOR KEY SHARE;
SELECT nextval('routing_seq'), pg_is_in_recovery();
SELECT routing_writes(12);
SELECT v, pg_is_in_recovery() FROM routing WHERE id = 12;
DELETE FROM routing WHERE id = 12 RETURNING id, pg_is_in_recovery();
SELECT count(*), pg_is_in_recovery() FROM routing WHERE id = 12;
PREPARE auto_read(int) AS SELECT id, pg_is_in_recovery() FROM routing WHERE id = $1;
EXECUTE auto_read(1);
PREPARE auto_write(int) AS DELETE FROM routing WHERE id = $1 RETURNING id, pg_is_in_recovery();
EXECUTE auto_write(11);
DEALLOCATE ALL;
-- A read-write transaction is the primary's from its first statement, a read-only one is a replica's.
BEGIN;
SELECT pg_is_in_recovery();
UPDATE routing SET v = 'once' WHERE id = 1 RETURNING pg_is_in_recovery();
SELECT v, pg_is_in_recovery() FROM routing WHERE id = 1;
COMMIT;
BEGIN READ ONLY;
SELECT v, pg_is_in_recovery() FROM routing WHERE id = 1;
COMMIT;

-- Back on the primary.
SET __neki.target = 'primary';
SELECT pg_is_in_recovery();
DROP FUNCTION routing_writes(int), routing_reads();
DROP SEQUENCE routing_seq;
DROP TABLE routing;
