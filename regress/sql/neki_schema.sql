-- The virtual schema: relations, their types, queries over them, procedures, rights.

-- It is there for every tool that reads the catalogs.
\dn neki
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = 'neki' AND c.relkind = 'v' AND c.relname NOT LIKE '\_%' ORDER BY 1;
SELECT DISTINCT p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
  WHERE n.nspname = 'neki' AND p.prokind = 'p' ORDER BY 1;
\d neki.replicas
SELECT table_name FROM information_schema.tables WHERE table_schema = 'neki' AND table_name = 'replicas';
SELECT 'neki.replicas'::regclass;

-- What it says about this cluster: two shards with two replicas each, and one rdonly.
SELECT count(*) FROM neki.shards;
SELECT shard, count(*) AS replicas, bool_and(state = 'serving') AS serving, bool_and(eligible) AS eligible
  FROM neki.replicas WHERE role = 'replica' GROUP BY shard ORDER BY shard;
SELECT shard, role, count(*) FROM neki.nodes GROUP BY 1, 2 ORDER BY 1, 2;
SELECT n.role, count(*) FROM neki.shards s JOIN neki.nodes n ON n.node = s.primary_node GROUP BY 1;
SELECT count(*) FROM neki.gateways;
SELECT count(*) FILTER (WHERE leader) AS leaders, count(*) AS admins FROM neki.admins;
SELECT count(*) FROM neki.replicas WHERE lag > interval '1 hour' OR lag < interval '0';
SELECT bool_and(receive_lsn >= replay_lsn) AS ordered FROM neki.replicas;
SELECT count(*) > 0 AS mine FROM neki.sessions WHERE "user" = current_user;
SELECT count(*) > 0 AS some FROM neki.pools;
SELECT count(*) > 0 AS some FROM neki.statements;
SELECT count(*) > 0 AS some FROM neki.metrics;
SELECT count(*) > 0 AS some FROM neki.events;
SELECT count(*) > 0 AS some FROM neki.plans;
SELECT name, value FROM neki.parameters WHERE name LIKE 'replication-lag-tolerable-%' ORDER BY 1;
SELECT count(*) FROM neki.replica_choice((SELECT shard FROM neki.shards WHERE authoritative));

-- Types of columns.
SELECT lag, lag_bytes, replay_lsn, eligible, since, connections FROM neki.replicas \gdesc
SELECT * FROM neki.shards \gdesc

-- Queries: every clause a report needs.
SELECT shard, max(lag) IS NOT NULL AS known FROM neki.replicas WHERE role = 'replica' GROUP BY 1 ORDER BY 2 DESC, 1;
SELECT DISTINCT role FROM neki.replicas ORDER BY role DESC;
SELECT count(*) FROM neki.nodes n WHERE EXISTS (SELECT 1 FROM neki.replicas r WHERE r.node = n.node);
SELECT count(*) FROM neki.nodes WHERE node NOT IN (SELECT node FROM neki.replicas);
WITH r AS (SELECT shard, count(*) AS c FROM neki.replicas GROUP BY shard HAVING count(*) >= 2)
  SELECT sum(c) = (SELECT count(*) FROM neki.replicas) AS all_of_them FROM r;
SELECT s.shard, r.node IS NULL AS no_such_node FROM neki.shards s LEFT JOIN neki.replicas r ON r.shard = s.shard AND r.node = 'none' ORDER BY 1;
SELECT role, CASE WHEN count(*) > 1 THEN 'several' ELSE 'one' END AS how_many FROM neki.nodes GROUP BY role ORDER BY role;
SELECT upper(role) AS role FROM neki.nodes WHERE role ILIKE 'PRIM%' LIMIT 1;
SELECT role FROM neki.nodes WHERE role = 'primary' UNION SELECT role FROM neki.replicas ORDER BY role;
SELECT count(*) FROM neki.nodes WHERE last_seen > now() - interval '1 minute';
SELECT node FROM neki.nodes WHERE node = 'none' OFFSET 0 LIMIT 5;

-- The same under every target: it never touches Postgres.
SET __neki.target = 'replica';
SELECT count(*) FROM neki.shards;
RESET __neki.target;
BEGIN;
SELECT count(*) FROM neki.shards;
COMMIT;

-- Errors.
SELECT * FROM neki.replica;
SELECT nod FROM neki.replicas;
INSERT INTO neki.shards (shard) VALUES ('x');
DELETE FROM neki.nodes;
CALL neki.reloaded();
CALL neki.cancel_query('me');
CREATE VIEW neki.mine AS SELECT 1;
CREATE TABLE neki_schema_t (node text);
SELECT * FROM neki.nodes n JOIN neki_schema_t t ON t.node = n.node;
DROP TABLE neki_schema_t;

-- Parameters change by SQL, with checks.
CALL neki.set_parameter(scope => 'gateway', name => 'idle-session-timeout', value => '20min');
SELECT value FROM neki.parameters WHERE scope = 'gateway' AND name = 'idle-session-timeout';
CALL neki.set_parameter(scope => 'gateway', name => 'replication-lag-tolerable-min', value => '20min');
CALL neki.set_parameter(scope => 'gateway', name => 'idle-session-timeot', value => '20min');
CALL neki.set_parameter(scope => 'gateway', name => 'idle-session-timeout', value => 'long');
CALL neki.set_parameter(scope => 'gateway', name => 'idle-session-timeout', value => '30min');
CALL neki.reload();
CALL neki.flush_plans();
SELECT count(*) > 0 AS recorded FROM neki.events WHERE kind = 'set_parameter';

-- Rights.
CREATE ROLE regress_neki_nobody LOGIN;
CREATE ROLE regress_neki_viewer LOGIN IN ROLE neki_viewer;
SET SESSION AUTHORIZATION regress_neki_nobody;
SELECT count(*) FROM neki.shards;
CALL neki.reload();
SELECT count(*) > 0 AS some FROM neki.settings;
SET SESSION AUTHORIZATION regress_neki_viewer;
SELECT count(*) FROM neki.shards;
CALL neki.reload();
RESET SESSION AUTHORIZATION;
DROP ROLE regress_neki_nobody, regress_neki_viewer;

-- Long actions, profiles and shards.
CALL neki.create_profile('regress', replicas => 1, parameters => '{"work_mem": "8MB"}');
SELECT profile, replicas, rdonly, parameters, is_default, shards FROM neki.profiles WHERE profile = 'regress';
CALL neki.alter_profile('regress', parameters => '{"fsync": "off"}');
CALL neki.alter_profile('nosuch', parameters => '{}');
CALL neki.drop_profile('default');
CALL neki.drop_profile('regress');
SELECT kind, target, state, progress, error FROM neki.operations WHERE target = 'profile regress';
CALL neki.fence('nosuch');
CALL neki.restart_node();
CALL neki.maintenance('sh2', "on" => true);
SELECT shard, maintenance FROM neki.shards ORDER BY shard;
CALL neki.fence('sh2-a');
CALL neki.maintenance('sh2', false);
CALL neki.rename_shard('sh2', 'sh1');
CALL neki.drop_shard((SELECT 'sh1'));
CALL neki.drop_shard('sh1');
CALL neki.create_shard(profile => 'default', count => 100);
CALL neki.switchover('sh1', candidate => 'nosuch');
CALL neki.cancel_operation('nosuch');
SELECT * FROM neki.operations \gdesc
