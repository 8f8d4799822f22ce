import java.io.StringReader;
import java.io.StringWriter;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.util.Objects;
import java.util.Properties;
import org.postgresql.PGConnection;
import org.postgresql.jdbc.AutoSave;
import org.postgresql.util.PSQLException;

/**
 * What a Java program does with a database, through the JDBC driver. Connects with the PG* variables. Any failed
 * expectation ends it with code 1 and says which.
 */
public class Drive {
  static Connection connect(String options) throws SQLException {
    Properties p = new Properties();
    p.setProperty("user", System.getenv("PGUSER"));
    p.setProperty("password", System.getenv("PGPASSWORD"));
    p.setProperty("sslmode", System.getenv("PGSSLMODE"));
    if (System.getenv("PGSSLROOTCERT") != null) {
      p.setProperty("sslrootcert", System.getenv("PGSSLROOTCERT"));
    }
    p.setProperty("prepareThreshold", "1"); // named statements from the first execution
    p.setProperty("connectTimeout", "10");
    if (options != null) {
      p.setProperty("options", options);
    }
    return DriverManager.getConnection("jdbc:postgresql://" + System.getenv("PGHOST") + ":" + System.getenv("PGPORT")
        + "/" + System.getenv("PGDATABASE"), p);
  }

  static void expect(Object got, Object want) {
    if (!Objects.equals(got, want)) {
      throw new AssertionError("got " + got + ", want " + want);
    }
  }

  interface Action {
    void run() throws SQLException;
  }

  static PSQLException expectError(String sqlstate, Action action) throws SQLException {
    try {
      action.run();
    } catch (PSQLException e) {
      expect(e.getSQLState(), sqlstate);
      return e;
    }
    throw new AssertionError("no error, want " + sqlstate);
  }

  static Object one(Connection c, String sql) throws SQLException {
    try (PreparedStatement s = c.prepareStatement(sql); ResultSet r = s.executeQuery()) {
      r.next();
      return r.getObject(1);
    }
  }

  static void run(Connection c, String sql) throws SQLException {
    try (var s = c.createStatement()) {
      s.execute(sql);
    }
  }

  static void preparedStatements(Connection c) throws SQLException {
    try (PreparedStatement s = c.prepareStatement("SELECT v, n FROM drv_jdbc WHERE id = ?")) {
      for (int id : new int[] {1, 2, 1, 2}) {
        s.setInt(1, id);
        try (ResultSet r = s.executeQuery()) {
          expect(r.next(), true);
          expect(r.getString(1), id == 1 ? "one" : "two");
          expect(r.getBigDecimal(2).intValue(), id * 10);
        }
      }
    }
    try (PreparedStatement s = c.prepareStatement("SELECT ?::int8 + 1, ?::text, ?::bytea, ?::bool")) {
      for (int i = 0; i < 8; i++) {
        s.setLong(1, i);
        s.setString(2, "täxt");
        s.setBytes(3, new byte[] {0, (byte) 255});
        s.setBoolean(4, true);
        try (ResultSet r = s.executeQuery()) {
          r.next();
          expect(r.getLong(1), i + 1L);
          expect(r.getString(2), "täxt");
          expect(r.getBytes(3).length, 2);
          expect(r.getBoolean(4), true);
        }
      }
    }
    try (PreparedStatement s = c.prepareStatement("INSERT INTO drv_jdbc VALUES (?, ?, ?)")) {
      for (int i = 1000; i < 1100; i++) {
        s.setInt(1, i);
        s.setString(2, "batch");
        s.setInt(3, i);
        s.addBatch();
      }
      expect(s.executeBatch().length, 100);
    }
    expect(one(c, "SELECT count(*) FROM drv_jdbc WHERE v = 'batch'"), 100L);
    run(c, "DELETE FROM drv_jdbc WHERE v = 'batch'");
  }

  static void transactions(Connection c) throws SQLException {
    c.setAutoCommit(false);
    run(c, "INSERT INTO drv_jdbc VALUES (3, 'gone', 30)");
    c.rollback();
    run(c, "INSERT INTO drv_jdbc VALUES (4, 'kept', 40)");
    Savepoint savepoint = c.setSavepoint();
    PSQLException e = expectError("23505", () -> run(c, "INSERT INTO drv_jdbc VALUES (4, 'twice', 40)"));
    expect(e.getServerErrorMessage().getConstraint(), "drv_jdbc_pkey");
    expect(e.getServerErrorMessage().getDetail(), "Key (id)=(4) already exists.");
    c.rollback(savepoint);
    c.commit();
    // Rows in portions: a portal with a row limit.
    try (PreparedStatement s = c.prepareStatement("SELECT i FROM generate_series(1, 1000) i")) {
      s.setFetchSize(10);
      int rows = 0;
      try (ResultSet r = s.executeQuery()) {
        while (r.next()) {
          expect(r.getInt(1), ++rows);
        }
      }
      expect(rows, 1000);
    }
    c.commit();
    c.setAutoCommit(true);
    expect(one(c, "SELECT string_agg(id::text, ',' ORDER BY id) FROM drv_jdbc"), "1,2,4");
  }

  // copyAndLargeObjects moves rows by COPY and bytes by the function call message.
  static void copyAndLargeObjects(Connection c) throws Exception {
    PGConnection pg = c.unwrap(PGConnection.class);
    StringBuilder rows = new StringBuilder();
    for (int i = 100; i < 2100; i++) {
      rows.append(i).append("\tcopied\t0\n");
    }
    expect(pg.getCopyAPI().copyIn("COPY drv_jdbc FROM STDIN", new StringReader(rows.toString())), 2000L);
    StringWriter out = new StringWriter();
    expect(pg.getCopyAPI().copyOut("COPY (SELECT * FROM drv_jdbc WHERE id >= 100 ORDER BY id) TO STDOUT", out), 2000L);
    expect(out.toString(), rows.toString());
    run(c, "DELETE FROM drv_jdbc WHERE id >= 100");
    c.setAutoCommit(false);
    long oid = pg.getLargeObjectAPI().createLO();
    try (var large = pg.getLargeObjectAPI().open(oid)) {
      large.write(new byte[100_000]);
    }
    c.commit();
    try (var large = pg.getLargeObjectAPI().open(oid)) {
      expect(large.size(), 100_000);
    }
    pg.getLargeObjectAPI().delete(oid);
    c.commit();
    c.setAutoCommit(true);
  }

  static void notifications(Connection sender) throws SQLException {
    try (Connection listener = connect(null)) {
      run(listener, "LISTEN drv_jdbc");
      run(sender, "NOTIFY drv_jdbc, 'hello'");
      var came = listener.unwrap(PGConnection.class).getNotifications(10_000);
      expect(came.length, 1);
      expect(came[0].getParameter(), "hello");
    }
  }

  static void timeout(Connection c) throws SQLException {
    try (var s = c.createStatement()) {
      s.setQueryTimeout(1); // the driver sends a cancel
      expectError("57014", () -> s.execute("SELECT pg_sleep(10)"));
    }
    expect(one(c, "SELECT 42"), 42);
  }

  // autosave lets a transaction go on after an error: a savepoint before every statement.
  static void autosave() throws SQLException {
    try (Connection c = connect(null)) {
      c.unwrap(PGConnection.class).setAutosave(AutoSave.ALWAYS);
      c.setAutoCommit(false);
      run(c, "INSERT INTO drv_jdbc VALUES (5, 'five', 50)");
      expectError("23505", () -> run(c, "INSERT INTO drv_jdbc VALUES (5, 'twice', 50)"));
      expect(one(c, "SELECT v FROM drv_jdbc WHERE id = 5"), "five");
      c.commit();
      run(c, "DELETE FROM drv_jdbc WHERE id = 5");
      c.commit();
    }
  }

  static void replica() throws SQLException {
    try (Connection c = connect("-c __neki.target=replica -c __neki.replica_consistency=bounded:30s")) {
      for (int i = 0; i < 8; i++) {
        expect(one(c, "SELECT pg_is_in_recovery()"), true);
      }
      expectError("25006", () -> run(c, "INSERT INTO drv_jdbc VALUES (9, 'refused', 9)"));
      c.setAutoCommit(false);
      expect(one(c, "SELECT pg_is_in_recovery()"), true);
      c.commit();
      c.setAutoCommit(true);
      run(c, "SET __neki.target = 'primary'");
      expect(one(c, "SELECT pg_is_in_recovery()"), false);
    }
  }

  public static void main(String[] args) throws Exception {
    try (Connection c = connect(null)) {
      run(c, "DROP TABLE IF EXISTS drv_jdbc");
      run(c, "CREATE TABLE drv_jdbc (id int PRIMARY KEY, v text, n numeric)");
      run(c, "INSERT INTO drv_jdbc VALUES (1, 'one', 10), (2, 'two', 20)");
      preparedStatements(c);
      transactions(c);
      copyAndLargeObjects(c);
      notifications(c);
      timeout(c);
      autosave();
      if (args.length > 0 && args[0].equals("neki")) {
        replica();
      }
      run(c, "DROP TABLE drv_jdbc");
    }
    System.out.println("JDBC: all as expected");
  }
}
