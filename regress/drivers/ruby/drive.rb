# What a Ruby program does with a database, through the gem pg. Connects with the PG* variables by libpq.
require "pg"

def expect(got, want)
  raise "got #{got.inspect}, want #{want.inspect}" unless got == want
end

def refused(sqlstate)
  yield
rescue PG::Error => e
  expect(e.result.error_field(PG::PG_DIAG_SQLSTATE), sqlstate)
  e
else
  raise "no error, want #{sqlstate}"
end

def prepared(conn)
  conn.prepare("by_id", "SELECT v FROM drv_ruby WHERE id = $1")
  [[1, "one"], [2, "two"], [1, "one"]].each do |id, v|
    conn.transaction { expect(conn.exec_prepared("by_id", [id]).values, [[v]]) }
  end
  expect(conn.describe_prepared("by_id").nparams, 1)
  conn.exec("DEALLOCATE by_id")
  refused("26000") { conn.exec_prepared("by_id", [1]) }
  expect(conn.exec_params("SELECT $1::bytea", [{ value: "\0\xff".b, format: 1 }], 1).getvalue(0, 0), "\0\xff".b)
end

def transactions(conn)
  begin
    conn.transaction do
      conn.exec("INSERT INTO drv_ruby VALUES (3, 'gone')")
      raise "back"
    end
  rescue RuntimeError => e
    expect(e.message, "back")
  end
  conn.transaction do
    conn.exec("INSERT INTO drv_ruby VALUES (4, 'kept'); SAVEPOINT s")
    refused("23505") { conn.exec_params("INSERT INTO drv_ruby VALUES ($1, 'twice')", [4]) }
    expect(conn.transaction_status, PG::PQTRANS_INERROR)
    conn.exec("ROLLBACK TO s")
  end
  expect(conn.exec("SELECT id FROM drv_ruby ORDER BY id").column_values(0), %w[1 2 4])
end

def streaming(conn)
  conn.send_query("SELECT generate_series(1, 1000)")
  conn.set_single_row_mode
  expect(conn.get_result.stream_each_row.map { |r| r[0].to_i }, (1..1000).to_a)
  expect(conn.get_result, nil)
  conn.copy_data("COPY drv_ruby FROM STDIN") { (100...2100).each { |i| conn.put_copy_data("#{i}\tcopied\n") } }
  got = []
  conn.copy_data("COPY (SELECT id FROM drv_ruby WHERE id >= 100 ORDER BY id) TO STDOUT") do
    while (line = conn.get_copy_data)
      got << line.to_i
    end
  end
  expect(got, (100...2100).to_a)
  conn.enter_pipeline_mode
  5.times { |i| conn.send_query_params("SELECT $1::int", [i]) }
  conn.pipeline_sync
  5.times do |i|
    expect(conn.get_result.getvalue(0, 0), i.to_s)
    expect(conn.get_result, nil)
  end
  expect(conn.get_result.result_status, PG::PGRES_PIPELINE_SYNC)
  conn.exit_pipeline_mode
  conn.exec("DELETE FROM drv_ruby WHERE id >= 100")
end

def notifications(sender)
  listener = PG.connect
  listener.exec("LISTEN drv_ruby")
  sender.exec("NOTIFY drv_ruby, 'hello'")
  payload = nil
  expect(listener.wait_for_notify(10) { |_, _, p| payload = p }, "drv_ruby")
  expect(payload, "hello")
  listener.close
end

def cancelled(conn)
  conn.send_query("SELECT pg_sleep(10)")
  expect(conn.block(0.1), false)
  conn.cancel
  refused("57014") { conn.get_last_result }
  expect(conn.exec("SELECT 42").getvalue(0, 0), "42")
end

def replica
  conn = PG.connect(options: "-c __neki.target=replica -c __neki.replica_consistency=bounded:30s")
  conn.prepare("where", "SELECT pg_is_in_recovery(), count(*) FROM drv_ruby")
  3.times { expect(conn.exec_prepared("where").values, [%w[t 3]]) }
  refused("25006") { conn.exec("INSERT INTO drv_ruby VALUES (9, 'refused')") }
  conn.close
end

conn = PG.connect
conn.set_notice_receiver { |_| nil }
conn.exec("DROP TABLE IF EXISTS drv_ruby; CREATE TABLE drv_ruby (id int PRIMARY KEY, v text)")
conn.exec("INSERT INTO drv_ruby VALUES (1, 'one'), (2, 'two')")
prepared(conn)
transactions(conn)
streaming(conn)
notifications(conn)
cancelled(conn)
replica if ARGV == ["neki"]
conn.exec("DROP TABLE drv_ruby")
conn.close
