-- one query a line; each must answer as Postgres does
SELECT 1
SELECT 1 AS one, 'x', NULL, true, 1.5, 10000000000, 1e10, -5, - 3
SELECT * FROM neki.replicas
SELECT node, shard FROM replicas WHERE role = 'replica' ORDER BY 1, 2
SELECT shard, max(lag) FROM neki.replicas WHERE role = 'replica' GROUP BY 1 ORDER BY 2 DESC
SELECT shard, count(*), count(n), sum(n), avg(n), min(node), max(big), bool_and(ok), bool_or(ok), every(ok) FROM replicas GROUP BY shard
SELECT count(*) FROM empty
SELECT sum(a), min(b), array_agg(a), string_agg(b, ',') FROM empty
SELECT sum(big), avg(big), sum(small), avg(small), sum(weight), avg(weight), sum(load), avg(load), sum(lag), avg(lag) FROM replicas
SELECT count(DISTINCT shard), array_agg(DISTINCT n), string_agg(DISTINCT shard, ',' ), array_agg(node ORDER BY n DESC, node) FROM replicas
SELECT shard, count(*) FILTER (WHERE ok), sum(n) FILTER (WHERE n > 1) FROM replicas GROUP BY shard HAVING count(*) > 1
SELECT variance(n), stddev(n), var_pop(n), stddev_pop(n), var_samp(weight), stddev(weight), variance(load), stddev_pop(small) FROM replicas WHERE node <> 'n5'
SELECT r.node, s.profile FROM replicas r JOIN shards s ON r.shard = s.shard
SELECT r.node, s.profile FROM replicas r LEFT JOIN shards s ON r.shard = s.shard AND s.n > 1
SELECT r.node, s.profile FROM replicas r RIGHT JOIN shards s USING (shard)
SELECT * FROM replicas r FULL JOIN shards s USING (shard)
SELECT shard, r.n, s.n FROM replicas r NATURAL JOIN shards s
SELECT shard, n FROM (SELECT shard, n FROM replicas) r NATURAL FULL JOIN (SELECT shard, n FROM shards) s
SELECT r.node, s.shard FROM replicas r, shards s WHERE r.n < s.n
SELECT a.node, b.node FROM replicas a CROSS JOIN replicas b WHERE a.n = b.n
SELECT node FROM replicas WHERE shard IN (SELECT shard FROM shards WHERE ready)
SELECT node FROM replicas WHERE shard NOT IN (SELECT prev FROM shards)
SELECT node FROM replicas r WHERE EXISTS (SELECT 1 FROM shards s WHERE s.shard = r.shard AND s.n > r.n)
SELECT node, (SELECT profile FROM shards s WHERE s.shard = r.shard AND s.profile <> 'dup') FROM replicas r
SELECT (SELECT shard FROM shards)
SELECT node, (SELECT count(*) FROM shards s WHERE s.shard = r.shard) c FROM replicas r ORDER BY 1, 2
SELECT node FROM replicas WHERE n > ALL (SELECT n FROM shards WHERE n < 4)
SELECT node FROM replicas WHERE n = ANY (SELECT n FROM shards)
SELECT ARRAY(SELECT n FROM shards ORDER BY n)
WITH x AS (SELECT shard, n FROM replicas), y(a) AS (SELECT max(n) FROM x) SELECT * FROM x, y WHERE x.n < y.a
WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t WHERE i < 10) SELECT sum(i), count(*) FROM t
WITH RECURSIVE t AS (SELECT shard, prev FROM shards WHERE shard = 'sh3' UNION SELECT s.shard, s.prev FROM shards s JOIN t ON s.shard = t.prev) SELECT * FROM t
SELECT shard FROM replicas UNION SELECT shard FROM shards
SELECT shard FROM replicas UNION ALL SELECT profile FROM shards
SELECT shard FROM replicas INTERSECT SELECT shard FROM shards
SELECT shard FROM replicas INTERSECT ALL SELECT shard FROM shards
SELECT shard FROM replicas EXCEPT SELECT shard FROM shards
SELECT shard FROM replicas EXCEPT ALL SELECT shard FROM shards
SELECT 1 UNION SELECT 2.5 ORDER BY 1
SELECT NULL UNION SELECT 1
SELECT 'a' UNION ALL SELECT NULL
SELECT n, shard FROM replicas UNION SELECT n, shard FROM shards ORDER BY 1, 2
VALUES (1, 'a'), (2, NULL), (3, 'c') ORDER BY column1 DESC LIMIT 2
SELECT * FROM (VALUES (1, 'a'), (2.5, 'b')) v(x, y) WHERE x > 1
SELECT DISTINCT shard FROM replicas ORDER BY shard NULLS FIRST
SELECT DISTINCT ON (shard) shard, node FROM replicas ORDER BY shard, node DESC
SELECT node FROM replicas ORDER BY lag DESC NULLS LAST, node LIMIT 3 OFFSET 1
SELECT node FROM replicas ORDER BY lower(role), node
SELECT upper(shard) u, count(*) FROM replicas GROUP BY u ORDER BY 1, 2
SELECT n % 2, count(*) FROM replicas GROUP BY n % 2
SELECT CASE WHEN n > 2 THEN 'big' WHEN n IS NULL THEN NULL ELSE 'small' END, CASE n WHEN 1 THEN 1 WHEN 4 THEN 2.5 END FROM replicas
SELECT coalesce(n, -1), nullif(n, 4), greatest(n, small, big), least(1, n) FROM replicas
SELECT n::text, load::text, weight::int, big::numeric, ok::int, ok::text, lag::text, lsn::text, since::text, day::timestamp, at::date, since::date FROM replicas WHERE node <> 'n5'
SELECT '5'::int, '1.5'::numeric(5,1), '12:30'::interval, '0/12'::pg_lsn, '2024-01-02'::date, '2024-01-02 03:04'::timestamptz, 'abc'::varchar(2), 't'::bool
SELECT int '5', interval '1 day', timestamptz '2024-06-01 00:00+00', date '2024-02-29'
SELECT 'abc'::int
SELECT '99999999999'::int
SELECT '2024-13-01'::date
SELECT '2024-02-30'::date
SELECT 1/0
SELECT 2147483647 + 1
SELECT 9223372036854775807 + 1
SELECT 32767::int2 + 1::int2
SELECT -2147483648::int4
SELECT 5/2, -5/2, 5%3, -5%3, 5.0/2, 7/3.0, 1/3.0, 10.5%3, 1e308*10
SELECT 1.10 + 2.205, 1.10 * 2.205, 100/7.0, 1000000/3.0, 0.0001/3, 1.5::float8/3, 1::float4/3
SELECT 'a' || 'b', 'a' || 1, 1 || 'a', NULL || 'a'
SELECT node LIKE 'n%', node LIKE '_1', shard LIKE 'Sh\_4\%', shard ILIKE 'SH%', shard NOT LIKE '%1', node ~ '^n[1-3]$', node !~ '1', shard ~* '^SH' FROM replicas
SELECT 'a_c' LIKE 'a!_c' ESCAPE '!', 'abc' LIKE 'a%' ESCAPE '%'
SELECT node FROM replicas WHERE n BETWEEN 1 AND 4 AND n NOT BETWEEN 2 AND 3
SELECT node FROM replicas WHERE n BETWEEN SYMMETRIC 4 AND 1
SELECT node FROM replicas WHERE n IN (1, 2, 7) OR n NOT IN (1, 4, NULL)
SELECT ok IS TRUE, ok IS NOT TRUE, ok IS FALSE, ok IS UNKNOWN, ok IS NOT UNKNOWN, NOT ok, ok IS NULL, n IS DISTINCT FROM 4, n IS NOT DISTINCT FROM NULL FROM replicas
SELECT node FROM replicas WHERE node = ANY ('{n1,n2}') AND n = ANY (ARRAY[1, 2]) AND 'b' = ANY (tags) AND 5 <> ALL (nums)
SELECT tags[1], nums[2], tags[1:2], nums[2:], array_length(tags, 1), cardinality(nums), array_to_string(tags, ',', '*'), tags || 'q', 'q' || tags, nums || nums FROM replicas
SELECT ARRAY[1,2,3], ARRAY['a', NULL], ARRAY[1, 2.5], ARRAY[]::text[], '{1,2}'::int[], ARRAY[1,2] = '{1,2}', ARRAY[1,2] < ARRAY[1,3], tags @> '{a}', '{a}' <@ tags, tags && '{b,c}' FROM replicas
SELECT array_append(nums, 1), array_prepend(0, nums), array_position(nums, 2), array_remove(nums, 2), array_cat(nums, '{9}'), array_upper(nums, 1), string_to_array('a,b', ',') FROM replicas
SELECT upper('aé'), lower('ÄB'), length('äöü'), octet_length('äöü'), substr('hello', 2, 3), substring('hello' from 2 for 2), substring('hello' from 2), replace('aXbX', 'X', '--'), left('hello', 2), left('hello', -2), right('hello', 2), right('hello', -2)
SELECT trim('  a '), btrim('xxaxx', 'x'), ltrim('  a'), rtrim('ab', 'b'), trim(both 'x' from 'xax'), lpad('7', 3, '0'), rpad('7', 3, 'ab'), split_part('a.b.c', '.', 2), split_part('a.b.c', '.', -1), strpos('hello', 'l'), position('l' in 'hello'), reverse('abc'), repeat('ab', 2), initcap('hello world'), md5('a'), ascii('a'), chr(65), translate('abc', 'ab', 'x'), starts_with('abc', 'ab')
SELECT concat('a', 1, NULL, true, 1.50), concat_ws(',', 'a', NULL, 2), format('%s-%I-%L-%%', 'x', 'Y z', 'it''s'), quote_literal('a''b'), quote_ident('select'), to_hex(255)
SELECT round(2.5), round(-2.5), round(2.567, 2), round(1234.5, -2), ceil(1.2), floor(-1.2), ceil(1.2::float8), floor(1.7::float8), round(2.5::float8), abs(-3), abs(-3.5), mod(7, 3), mod(-7.5, 2), trunc(1.99), trunc(-1.999, 1), sign(-2.5), sqrt(2::float8), sqrt(2.0), gcd(12, 18), div(7, 2)
SELECT since + '1 day', since - '1 hour'::interval, at + interval '1 month', day + 1, day - 1, day - '2024-01-01'::date, since - '2024-01-01'::timestamptz, at - at, day + '12:00'::interval, lag * 2, lag / 2, lag + '1 day', -lag, lag * 1.5 FROM replicas
SELECT date_trunc('hour', since), date_trunc('day', since), date_trunc('week', at), date_trunc('month', day), date_trunc('quarter', at), date_trunc('year', since), date_trunc('decade', at), date_trunc('century', at), date_trunc('minute', lag) FROM replicas
SELECT extract(year from since), extract(month from at), extract(day from day), extract(hour from since), extract(minute from at), extract(second from at), extract(epoch from since), extract(epoch from lag), extract(dow from day), extract(isodow from day), extract(doy from day), extract(week from day), extract(isoyear from day), extract(quarter from day), extract(century from day), extract(milliseconds from at), extract(microseconds from at), extract(day from lag), extract(hour from lag), extract(month from lag), extract(timezone from since) FROM replicas
SELECT date_part('epoch', lag), date_part('year', since), date_part('second', at), date_part('dow', day), date_part('hour', day) FROM replicas
SELECT extract(hour from day) FROM replicas
SELECT date_trunc('foo', at) FROM replicas
SELECT extract(foo from at) FROM replicas
SELECT since AT TIME ZONE 'UTC', at AT TIME ZONE 'America/New_York', since::timestamp, at::timestamptz, day::timestamptz FROM replicas
SELECT age('2024-03-31'::timestamp, '2023-02-28 12:00'), age(since, '2020-02-29'), make_interval(days => 10, hours => 2), make_interval(1, 2), justify_hours('27 hours'), justify_days('35 days'), to_timestamp(1.5), isfinite(day) FROM replicas
SELECT lsn - '0/10', lsn > '0/FFF', lsn + 16, lsn - 16::numeric, pg_wal_lsn_diff(lsn, '0/0'), lsn = '0/1000' FROM replicas WHERE node <> 'n8'
SELECT '1 year 2 mons -3 days 04:05:06.789'::interval, '-1 day'::interval, '1.5 days'::interval, 'P1Y2M3DT4H5M6S'::interval, '100 hours'::interval, '1 week ago'::interval, '90'::interval, '1-2'::interval, '3 4:05'::interval, '-00:00:01'::interval, '1.5 months'::interval, '2.5 years'::interval
SELECT 'infinity'::timestamptz, '-infinity'::date, '0044-03-15 BC'::date, '10000-01-01'::timestamp, 'epoch'::timestamptz
SELECT 1e15::float8, 123456789012345678::float8, 0.1::float8 + 0.2::float8, 1e-5::float8, 100000::float4, 1234567::float4, 'NaN'::float8, '-Infinity'::float8, 0.3::float4, 1e22::float8
SELECT 1.10, 0.000, -0.0, 1e-3, 12345678901234567890.123, 'NaN'::numeric, 'infinity'::numeric
SELECT doc->'a', doc->>'a', doc->'b'->'c', doc#>>'{b,c,1}', doc->0, jsonb_typeof(doc), doc ? 'a' FROM replicas
SELECT '{"b":1,"a":[1,2,{"x":null}],"b":2}'::jsonb, ' [1,  2.50]'::jsonb, '"a\u00e9"'::jsonb, jsonb_build_object('a', 1, 'b', NULL), to_jsonb(1.5)
SELECT x FROM replicas
SELECT noded FROM replicas
SELECT r.nope FROM replicas r
SELECT z.node FROM replicas r
SELECT * FROM nosuch
SELECT * FROM neki.replcas
SELECT node, count(*) FROM replicas
SELECT node FROM replicas GROUP BY shard
SELECT count(count(*)) FROM replicas
SELECT node FROM replicas WHERE count(*) > 1
SELECT nofunc(1)
SELECT lower(1)
SELECT 1 + 'a'
SELECT 1 + true
SELECT '1' + '2'
SELECT 'a' = 1
SELECT n = 'x' FROM replicas
SELECT n = node FROM replicas
SELECT node FROM replicas WHERE n
SELECT node FROM replicas ORDER BY 5
SELECT node FROM replicas GROUP BY 3
SELECT node FROM replicas LIMIT -1
SELECT node FROM replicas OFFSET -1
SELECT node FROM replicas LIMIT 'a'
SELECT shard FROM replicas a, shards b
SELECT * FROM replicas a, shards a
SELECT 1 UNION SELECT 1, 2
SELECT 1 UNION SELECT 'a'
SELECT 1 UNION SELECT true
SELECT CASE WHEN true THEN 1 ELSE 'a' END
SELECT CASE WHEN 1 THEN 1 END
SELECT coalesce(1, true)
SELECT (SELECT 1, 2)
SELECT 1 IN (SELECT 1, 2)
SELECT true::interval
SELECT 'x'::nosuchtype
SELECT sum('a')
SELECT sum(node) FROM replicas
SELECT DISTINCT node FROM replicas ORDER BY n
SELECT DISTINCT ON (node) node FROM replicas ORDER BY n
SELECT ARRAY[]
SELECT node FROM replicas WHERE ok = 1
SELECT * FROM generate_series(1, 5) g WHERE g % 2 = 1
SELECT g, x FROM generate_series(1, 3) g, unnest(ARRAY['a', 'b']) WITH ORDINALITY AS u(x, i) WHERE i = 1
SELECT node, t FROM replicas, unnest(tags) t
SELECT r.node, x.c FROM replicas r LEFT JOIN LATERAL (SELECT count(*) c FROM shards s WHERE s.shard = r.shard) x ON true
SELECT generate_series FROM generate_series('2024-01-01'::timestamp, '2024-01-03', '1 day')
SELECT row_number() OVER (ORDER BY node), rank() OVER (ORDER BY n), dense_rank() OVER (PARTITION BY shard ORDER BY n NULLS FIRST), lag(node) OVER (ORDER BY node), lead(n, 2, -1) OVER (ORDER BY node), sum(n) OVER (PARTITION BY shard ORDER BY node), count(*) OVER (), first_value(node) OVER w, last_value(node) OVER w FROM replicas WINDOW w AS (PARTITION BY shard ORDER BY node)
SELECT shard, sum(sum(n)) OVER (ORDER BY shard), count(*) FROM replicas GROUP BY shard
SELECT node, row_number() OVER (ORDER BY n DESC, node) AS rn FROM replicas ORDER BY rn LIMIT 2
SELECT (1, 'a') = (1, 'a'), (1, 2) <> (1, 3), (1, NULL) = (1, 2)
SELECT node FROM replicas WHERE (shard, n) IN (SELECT shard, n FROM shards) OR (shard, n) IN (('sh1', 1), ('sh2', 4))
SELECT current_user, session_user, current_database(), current_catalog, user
SELECT 'a' COLLATE "C" < 'B'
SELECT max(tags), min(nums) FROM replicas
SELECT nm, nm = 'nm1', nm || 'x', nm::text, length(nm) FROM replicas
SELECT id, id = '00000000-0000-0000-0000-000000000001', id::text, min(id::text) FROM replicas GROUP BY id
SELECT count(*) AS "select", node AS n FROM replicas GROUP BY node ORDER BY n LIMIT 1
SELECT r.* FROM replicas r JOIN shards s ON s.shard = r.shard AND r.n = s.n
SELECT exists(SELECT 1), (SELECT 5), array(SELECT 1), case when true then 'x' end, case when true then node end, n::int8, n::text::int, coalesce(n), greatest(1), nullif(1,2), (n), -n, n+1, now() IS NOT NULL, tags[1], ARRAY[1], current_date IS NULL, 'a'::text, true::text FROM replicas LIMIT 1
SELECT 1 WHERE false
SELECT sum(n) + 1 AS s FROM replicas HAVING sum(n) > 100
SELECT 1 FROM replicas HAVING true
SELECT shard || '!', count(*) FROM replicas GROUP BY shard || '!'
SELECT length(shard) FROM replicas GROUP BY shard
SELECT pg_size_pretty(10240::bigint), pg_size_pretty(123456789::bigint), pg_size_pretty(-5::bigint)
SELECT day = '2024-03-01', day < at, since > at, since = day, day <> since FROM replicas
SELECT n FROM replicas WHERE n > '2' AND load > 1 AND weight > 1.5 AND big > n
SELECT 1::int2 = 1::int8, 1.0 = 1, 1::float8 = 1.0, 'a'::varchar = 'a'::text, 1 = 1.0::float4
SELECT int4(5.7), text(5), date('2024-01-01'), float8('1.5')
SELECT 1 AS a ORDER BY a + 1
SELECT n AS node FROM replicas ORDER BY node
SELECT n + 1 FROM replicas GROUP BY n + 1 ORDER BY n + 1
SELECT '{1,2'::int[]
SELECT '{a,"b c",NULL,"null",\\x}'::text[]
SELECT interval '1 month' = interval '30 days', interval '24 hours' = '1 day', '1 day'::interval < '25:00'
SELECT true AND NULL, false AND NULL, true OR NULL, NULL::bool IS NULL, NOT NULL
SELECT * FROM (SELECT 1 AS a, 2 AS a) x
SELECT a FROM (SELECT 1 AS a, 2 AS a) x
SELECT x.a, y.b FROM (SELECT 1 AS a) x LEFT JOIN (SELECT 2 AS a, 3 AS b) y ON x.a = y.a
SELECT (SELECT max(n) FROM replicas r2 WHERE r2.shard = r1.shard AND r2.n <> (SELECT max(n) FROM replicas r3 WHERE r3.shard = r1.shard)) FROM replicas r1
SELECT shard FROM replicas r GROUP BY shard HAVING count(*) > (SELECT count(*) FROM shards s WHERE s.shard = r.shard)
SELECT sum(n) FROM replicas WHERE node IN (SELECT node FROM replicas WHERE n > 0) AND n < ANY (ARRAY[2, 3])
SELECT role, coalesce(role, 'x'), 'abc'::varchar(5), 1.5::numeric(5,2), coalesce(weight::numeric(5,2), n), CASE WHEN ok THEN n::numeric(4,1) ELSE small::numeric(6,1) END, CASE WHEN ok THEN n::numeric(4,1) ELSE n::numeric(4,1) END FROM replicas
SELECT role FROM replicas UNION SELECT role FROM replicas
SELECT * FROM (SELECT role, weight FROM replicas) x
WITH x AS (SELECT role FROM replicas) SELECT * FROM x
SELECT (SELECT role FROM replicas LIMIT 1), min(role), nullif(role, 'a'), role || 'x' FROM replicas GROUP BY role
SELECT '2024-01-01 10:11:12.56789'::timestamp(2), now()::timestamp(0) IS NULL, current_timestamp(3) IS NULL
SELECT sum(n) FILTER (WHERE ok) OVER (ORDER BY node) FROM replicas
SELECT a.n FROM replicas a WHERE a.n = (SELECT b.n FROM shards b WHERE b.shard = a.shard AND b.n = a.n LIMIT 1)
SELECT count(*) FROM replicas a, shards b, replicas c WHERE a.shard = b.shard AND b.n = c.n
SELECT x FROM (VALUES ('a'), ('B'), (NULL)) v(x) ORDER BY x
SELECT v.* FROM (VALUES (1, 2), (3, 4)) AS v
SELECT x.n + y FROM (SELECT n FROM replicas) x, LATERAL (SELECT x.n * 2 AS y) z
SELECT node FROM replicas WHERE tags IS NOT NULL AND NOT (tags @> ARRAY['a']) OR nums = '{7}'
SELECT node, lag > '1 hour', lag IS NULL, extract(epoch from lag) > 100, lag = '1 day' FROM replicas
SELECT node FROM replicas WHERE since > now() - interval '10 years' AND since < timestamptz '2026-01-01'
SELECT node FROM replicas WHERE lag > 5
SELECT node FROM replicas WHERE lag > '5 fortnights'
SELECT max(doc) FROM replicas
SELECT node FROM replicas WHERE shard LIKE 5
SELECT upper(n) FROM replicas
SELECT length(since) FROM replicas
SELECT date_trunc('day', node) FROM replicas
SELECT n, count(*) FROM replicas GROUP BY 2
SELECT n FROM replicas GROUP BY n HAVING load > 1
SELECT count(*) FROM replicas WHERE row_number() OVER () = 1
SELECT sum(row_number() OVER ()) FROM replicas
SELECT row_number() FROM replicas
SELECT lower('a') OVER () FROM replicas
SELECT lower(DISTINCT 'a')
SELECT count() FROM replicas
SELECT string_agg(DISTINCT node, ',' ORDER BY n) FROM replicas
SELECT x.* FROM replicas
SELECT * 
SELECT replicas.node FROM replicas r
SELECT neki.replicas.node FROM neki.replicas LIMIT 0
SELECT other.replicas.node FROM neki.replicas LIMIT 0
SELECT node AS a, n AS a FROM replicas ORDER BY a
SELECT shard FROM replicas JOIN shards USING (nope)
SELECT shard FROM (SELECT 1 AS x, 2 AS x) a JOIN (SELECT 1 AS x) b USING (x)
SELECT r.node FROM replicas r JOIN shards s ON r.n
SELECT * FROM replicas r JOIN shards s ON x.n = 1
WITH a AS (SELECT 1), a AS (SELECT 2) SELECT 1
WITH a(x, y) AS (SELECT 1) SELECT 1
WITH RECURSIVE t AS (SELECT 1 AS i UNION ALL SELECT i + 1.5 FROM t) SELECT * FROM t
SELECT * FROM (VALUES (1), (2, 3)) v
SELECT * FROM (VALUES (1), ('a')) v
SELECT * FROM (SELECT 1) x(a, b)
SELECT 1 LIMIT 1 OFFSET 'x'
SELECT 1 LIMIT n FROM replicas
SELECT node FROM replicas LIMIT n
SELECT (1, 2) = (1, 2, 3)
SELECT 1 = ANY (1)
SELECT 1 = ANY ('{a}')
SELECT n[1] FROM replicas
SELECT tags['a'] FROM replicas
SELECT $$a$$ || E'\\n', 0::bool, 1::bool, 'yes'::bool, 'o'::bool
SELECT ''::int
SELECT ' 12 '::int, '+5'::int8, '1e3'::float8, '.5'::numeric, '5.'::numeric, '1e400'::float8
SELECT '1e400'::numeric > 1, 1e-400::float8
SELECT 'x'::bool
SELECT 'x/y'::pg_lsn
SELECT '1:2:3:4'::interval
SELECT '25:61'::interval
SELECT '2024-01-01 25:00'::timestamp
SELECT '2024-01-01 10:00 Mars/Phobos'::timestamptz
SELECT 'zzz'::timestamptz
SELECT 'not-a-uuid'::uuid
SELECT '{"a":'::jsonb
SELECT '2024-01-01'::date + '1 day'
SELECT 1::numeric / 0, 1
SELECT 1::float8 / 0
SELECT 5 % 0
SELECT sqrt(-1::float8)
SELECT substr('abc', 1, -1)
SELECT split_part('a', 'b', 0)
SELECT chr(0)
SELECT 'abc' LIKE 'a\'
SELECT 'a' ~ '('
SELECT 99999::int2
SELECT 3e9::int
SELECT 'NaN'::float8::int
SELECT 123.456::numeric(4,2)
SELECT repeat('x', 3)::varchar(2), 'abc'::name
SELECT max(n) FROM replicas WHERE n > (SELECT avg(n) FROM replicas)
SELECT to_char(since, 'YYYY-MM-DD HH24:MI:SS.US'), to_char(at, 'DD Mon YYYY, HH12:MI am'), to_char(day, 'Month MON month Q/YY MS [x] ü'), to_char(since, 'yyyymmdd hh PM'), to_char(at, '') FROM replicas
-- refused: what can't be done exactly is 0A000
SELECT load FROM replicas ORDER BY doc
SELECT ln(2.0)
SELECT 'a' SIMILAR TO 'b'
SELECT node FROM replicas ORDER BY node COLLATE "de_DE"
SELECT ARRAY[[1,2],[3,4]]
SELECT r FROM replicas r
SELECT shard, count(*) FROM replicas GROUP BY ROLLUP (shard)
SELECT '1'::bit
SELECT 'abc'::char(5)
SELECT 2^10
SELECT pg_typeof(1)
SELECT array_agg(tags) FROM replicas
SELECT to_char(1, '9')
SELECT max(n) FROM replicas GROUP BY ()
SELECT to_char(since, 'Day') FROM replicas
