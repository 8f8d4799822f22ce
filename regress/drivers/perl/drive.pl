# What a Perl program does with a database, through DBD::Pg. Connects with the PG* variables by libpq.
use strict;
use warnings;
use DBI;
use DBD::Pg qw(:async);

sub expect {
  my ($got, $want) = @_;
  die "got $got, want $want" unless $got eq $want;
}

sub refused {
  my ($dbh, $sqlstate, $run) = @_;
  die "no error, want $sqlstate" if eval { $run->(); 1 };
  expect($dbh->state, $sqlstate);
}

sub dial {
  return DBI->connect("dbi:Pg:", $ENV{PGUSER}, $ENV{PGPASSWORD},
    { AutoCommit => 1, RaiseError => 1, PrintError => 0, PrintWarn => 0, pg_enable_utf8 => 1 });
}

sub prepared {
  my ($dbh) = @_;
  my $by_id = $dbh->prepare("SELECT v FROM drv_perl WHERE id = ?", { pg_prepare_now => 1 });
  for my $pair ([1, "one"], [2, "two"], [1, "one"]) {
    $dbh->begin_work;
    $by_id->execute($pair->[0]);
    expect($by_id->fetchrow_array, $pair->[1]);
    $dbh->commit;
  }
  my $insert = $dbh->prepare("INSERT INTO drv_perl VALUES (?, ?)");
  $dbh->begin_work;
  $insert->execute_array({}, [1000 .. 1099], "many");
  expect($dbh->selectrow_array("SELECT count(*) FROM drv_perl WHERE v = 'many'"), 100);
  $dbh->rollback;
}

sub transactions {
  my ($dbh) = @_;
  $dbh->begin_work;
  $dbh->do("INSERT INTO drv_perl VALUES (3, 'gone')");
  $dbh->rollback;
  $dbh->begin_work;
  $dbh->do("INSERT INTO drv_perl VALUES (4, 'kept')");
  $dbh->pg_savepoint("s");
  refused($dbh, "23505", sub { $dbh->do("INSERT INTO drv_perl VALUES (?, 'twice')", undef, 4) });
  $dbh->pg_rollback_to("s");
  $dbh->commit;
  expect(join(",", @{ $dbh->selectcol_arrayref("SELECT id FROM drv_perl ORDER BY id") }), "1,2,4");
}

sub streaming {
  my ($dbh) = @_;
  $dbh->begin_work;
  $dbh->do("DECLARE c CURSOR FOR SELECT generate_series(1, 1000)");
  my $seen = 0;
  while (my @ids = @{ $dbh->selectcol_arrayref("FETCH 100 FROM c") }) { $seen += @ids }
  expect($seen, 1000);
  $dbh->commit;
  $dbh->do("COPY drv_perl FROM STDIN");
  $dbh->pg_putcopydata("$_\tcopied\n") for 100 .. 2099;
  $dbh->pg_putcopyend;
  $dbh->do("COPY (SELECT id FROM drv_perl WHERE id >= 100 ORDER BY id) TO STDOUT");
  my ($line, $at) = ("", 100);
  while ($dbh->pg_getcopydata($line) >= 0) { expect($line, $at++ . "\n") }
  expect($at, 2100);
  $dbh->do("DELETE FROM drv_perl WHERE id >= 100");
}

sub notifications {
  my ($sender) = @_;
  my $listener = dial();
  $listener->do("LISTEN drv_perl");
  $sender->do("NOTIFY drv_perl, 'hello'");
  my $end = time + 10;
  my $notify;
  until ($notify = $listener->pg_notifies) {
    die "no notification" if time > $end;
    select(undef, undef, undef, 0.02);
  }
  expect($notify->[2], "hello");
  $listener->disconnect;
}

sub cancelled {
  my ($dbh) = @_;
  my $slow = $dbh->prepare("SELECT pg_sleep(10)", { pg_async => PG_ASYNC });
  $slow->execute;
  $slow->pg_cancel;
  expect($dbh->selectrow_array("SELECT 42"), 42);
  $dbh->begin_work;
  $dbh->do("SET LOCAL statement_timeout = 50");
  refused($dbh, "57014", sub { $dbh->do("SELECT pg_sleep(10)") });
  $dbh->rollback;
}

sub replica {
  local $ENV{PGOPTIONS} = "-c __neki.target=replica -c __neki.replica_consistency=bounded:30s";
  my $dbh = dial();
  my $where = $dbh->prepare("SELECT pg_is_in_recovery() AND ?, count(*) FROM drv_perl", { pg_prepare_now => 1 });
  for (1 .. 3) {
    $where->execute("t");
    expect(join(",", $where->fetchrow_array), "1,3");
    $where->finish;
  }
  refused($dbh, "25006", sub { $dbh->do("INSERT INTO drv_perl VALUES (9, 'refused')") });
  $dbh->disconnect;
}

my $dbh = dial();
$dbh->do("DROP TABLE IF EXISTS drv_perl");
$dbh->do("CREATE TABLE drv_perl (id int PRIMARY KEY, v text)");
$dbh->do("INSERT INTO drv_perl VALUES (1, 'one'), (2, 'two')");
prepared($dbh);
transactions($dbh);
streaming($dbh);
notifications($dbh);
cancelled($dbh);
replica() if @ARGV && $ARGV[0] eq "neki";
$dbh->do("DROP TABLE drv_perl");
$dbh->disconnect;
