-- The session settings: every way to set them, what they refuse, what takes them back.

-- Defaults.
SHOW __neki.target;
SHOW __neki.replica_recency;
SHOW __neki.replica_locality;
SHOW __neki.replica_affinity;
SHOW __neki.replica_consistency;
SHOW __neki.replica_wait;
SHOW __neki.fanout;
SHOW __neki.tx_mode;
SHOW __neki.shard;

-- Values and names in any case, every form of SET.
SET __neki.target = 'REPLICA';
SHOW __neki.target;
SET SESSION __neki.target TO Rdonly;
SHOW __neki.target;
SET __NEKI.Target = auto;
SHOW __neki.TARGET;
SET __neki.target = DEFAULT;
SHOW __neki.target;
SET __neki.replica_recency = require;
SET __neki.replica_locality = off;
SET __neki.replica_affinity = session;
SET __neki.fanout = 'multi';
SET __neki.tx_mode = 'single';
SHOW __neki.replica_recency;
SHOW __neki.replica_locality;
SHOW __neki.replica_affinity;
SHOW __neki.fanout;
SHOW __neki.tx_mode;
RESET __neki.replica_recency;
SHOW __neki.replica_recency;

-- Intervals.
SET __neki.replica_consistency = 'session';
SHOW __neki.replica_consistency;
SET __neki.replica_consistency = 'BOUNDED:5s';
SHOW __neki.replica_consistency;
SET __neki.replica_consistency = 'bounded:1500ms';
SHOW __neki.replica_consistency;
SET __neki.replica_wait = '250ms';
SHOW __neki.replica_wait;
SET __neki.replica_wait = '2s';
SHOW __neki.replica_wait;

-- As functions.
SELECT set_config('__neki.target', 'Replica', false);
SELECT current_setting('__neki.target');
SELECT current_setting('__neki.target') AS target, 1 + 1 AS two;
SELECT set_config('__neki.target', 'primary', false) AS target, 'beside it' AS other;
SHOW __neki.target;

-- RESET ALL and DISCARD ALL take everything back.
SET __neki.target = 'auto';
SET work_mem = '5MB';
RESET ALL;
SHOW __neki.target;
SHOW __neki.replica_consistency;
SHOW __neki.replica_wait;
SHOW work_mem;
SET __neki.replica_affinity = 'session';
DISCARD ALL;
SHOW __neki.replica_affinity;

-- What the connection starts with is what RESET returns to.
\c -reuse-previous=on "options='-c __neki.target=REPLICA -c __neki.replica_wait=3s'"
SHOW __neki.target;
SHOW __neki.replica_wait;
SET __neki.target = 'primary';
SHOW __neki.target;
RESET __neki.target;
SHOW __neki.target;
SET __neki.target = 'primary';
DISCARD ALL;
SHOW __neki.target;
\c -reuse-previous=on "options=''"
SHOW __neki.target;

-- A wrong value is refused and says what is allowed; the old value stays.
SET __neki.target = 'secondary';
SET __neki.replica_recency = 'always';
SET __neki.replica_consistency = 'bounded';
SET __neki.replica_consistency = 'bounded:soon';
SET __neki.replica_wait = '-1s';
SET __neki.shard = 'not a name';
SELECT set_config('__neki.target', 'nowhere', false);
SHOW __neki.target;
SHOW __neki.replica_consistency;

-- An unknown name is an error, not a custom parameter.
SET __neki.taget = 'replica';
SHOW __neki.taget;
RESET __neki.taget;
SELECT set_config('__neki.replica_recencie', 'require', false);
SELECT current_setting('__neki.taget');
SELECT current_setting('__neki.taget', true) IS NULL AS missing_ok;

-- None changes inside a transaction block, and SET LOCAL never.
BEGIN;
SET __neki.target = 'replica';
SHOW __neki.target;
ROLLBACK;
BEGIN;
SELECT set_config('__neki.target', 'replica', true);
ROLLBACK;
SET LOCAL __neki.target = 'replica';
BEGIN;
SELECT 1 / 0;
SET __neki.target = 'replica';
ROLLBACK;
SHOW __neki.target;

-- They are rows of neki.settings.
SET __neki.target = 'auto';
SELECT name, value, "default", source FROM neki.settings WHERE name LIKE '\_\_neki.%' ORDER BY name;
SELECT name FROM neki.settings WHERE description IS NULL;
SELECT name, allowed FROM neki.settings WHERE name = '__neki.target';
RESET __neki.target;

-- Standard settings beside them behave as ever.
SET work_mem = '7MB';
SHOW work_mem;
RESET work_mem;
SET app.custom = 'mine';
SHOW app.custom;
