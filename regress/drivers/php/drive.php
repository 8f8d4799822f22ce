<?php
// What a PHP program does with a database, through PDO. Connects with the PG* variables by libpq.

function expect($got, $want) {
  if ($got !== $want) {
    throw new AssertionError('got ' . var_export($got, true) . ', want ' . var_export($want, true));
  }
}

function refused($sqlstate, $run) {
  try {
    $run();
  } catch (PDOException $e) {
    expect($e->errorInfo[0], $sqlstate);
    return;
  }
  throw new AssertionError("no error, want $sqlstate");
}

function connect($options = '') {
  return new PDO("pgsql:options='$options'", getenv('PGUSER'), getenv('PGPASSWORD'), [
    PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION, PDO::ATTR_EMULATE_PREPARES => false, PDO::ATTR_DEFAULT_FETCH_MODE => PDO::FETCH_NUM]);
}

function prepared($db) {
  $byId = $db->prepare('SELECT v FROM drv_php WHERE id = ?');
  foreach ([[1, 'one'], [2, 'two'], [1, 'one']] as [$id, $v]) {
    $db->beginTransaction();
    $byId->execute([$id]);
    expect($byId->fetchAll(), [[$v]]);
    $db->commit();
  }
  $unnamed = $db->prepare('SELECT ?::int + 1', [PDO::PGSQL_ATTR_DISABLE_PREPARES => true]);
  $unnamed->execute([41]);
  expect($unnamed->fetchColumn(), 42);
}

function transactions($db) {
  $db->beginTransaction();
  $db->exec("INSERT INTO drv_php VALUES (3, 'gone')");
  $db->rollBack();
  $db->beginTransaction();
  $db->exec("INSERT INTO drv_php VALUES (4, 'kept')");
  $db->exec('SAVEPOINT s');
  $insert = $db->prepare('INSERT INTO drv_php VALUES (?, ?)');
  refused('23505', fn() => $insert->execute([4, 'twice']));
  expect($db->inTransaction(), true);
  $db->exec('ROLLBACK TO s');
  $db->commit();
  expect($db->query('SELECT id FROM drv_php ORDER BY id')->fetchAll(PDO::FETCH_COLUMN), [1, 2, 4]);
}

function streaming($db) {
  $db->beginTransaction();
  $cursor = $db->prepare('SELECT generate_series(1, 100)', [PDO::ATTR_CURSOR => PDO::CURSOR_SCROLL]);
  $cursor->execute();
  for ($seen = 0; $cursor->fetch(); $seen++);
  expect($seen, 100);
  expect($cursor->fetch(PDO::FETCH_NUM, PDO::FETCH_ORI_ABS, 7), [7]);
  $cursor = null;
  $db->commit();
  expect($db->pgsqlCopyFromArray('drv_php', array_map(fn($i) => "$i\tcopied", range(100, 2099))), true);
  $rows = $db->pgsqlCopyToArray('(SELECT id FROM drv_php WHERE id >= 100 ORDER BY id)');
  expect(array_map('intval', $rows), range(100, 2099));
  $db->exec('DELETE FROM drv_php WHERE id >= 100');
  $db->beginTransaction();
  $oid = $db->pgsqlLOBCreate();
  $stream = $db->pgsqlLOBOpen($oid, 'w');
  fwrite($stream, 'large');
  $stream = null;
  $db->commit();
  $db->beginTransaction();
  $stream = $db->pgsqlLOBOpen($oid, 'r');
  expect(stream_get_contents($stream), 'large');
  $stream = null;
  $db->pgsqlLOBUnlink($oid);
  $db->commit();
}

function notifications($sender) {
  $listener = connect();
  $listener->exec('LISTEN drv_php');
  $sender->exec("NOTIFY drv_php, 'hello'");
  $got = $listener->pgsqlGetNotify(PDO::FETCH_ASSOC, 10000);
  expect([$got['message'], $got['payload']], ['drv_php', 'hello']);
}

function timeout($db) {
  $db->beginTransaction();
  $db->exec('SET LOCAL statement_timeout = 50');
  refused('57014', fn() => $db->query('SELECT pg_sleep(10)'));
  $db->rollBack();
}

function replica() {
  $db = connect('-c __neki.target=replica -c __neki.replica_consistency=bounded:30s');
  $where = $db->prepare('SELECT pg_is_in_recovery(), count(*) FROM drv_php');
  for ($i = 0; $i < 3; $i++) {
    $where->execute();
    expect($where->fetch(), [true, 3]);
  }
  refused('25006', fn() => $db->exec("INSERT INTO drv_php VALUES (9, 'refused')"));
}

$db = connect();
$db->exec('DROP TABLE IF EXISTS drv_php');
$db->exec('CREATE TABLE drv_php (id int PRIMARY KEY, v text)');
$db->exec("INSERT INTO drv_php VALUES (1, 'one'), (2, 'two')");
prepared($db);
transactions($db);
streaming($db);
notifications($db);
timeout($db);
if (($argv[1] ?? '') === 'neki') {
  replica();
}
$db->exec('DROP TABLE drv_php');
