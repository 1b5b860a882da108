import java.sql.*;

/** A client of the load by JDBC, as `strandline.bench.served.client` is one: a line of JSON for each thing it did. */
public class Load {
    public static void main(String[] arguments) throws Exception {
        int number = Integer.parseInt(arguments[1]);
        long until = System.nanoTime() + (long) (1e9 * Double.parseDouble(arguments[2]));
        try (Connection connection = DriverManager.getConnection(arguments[0]);
                Statement statement = connection.createStatement()) {
            System.out.println("{\"ready\": \"jdbc\"}");
            for (int n = 0; System.nanoTime() < until; n++) {
                long begun = System.nanoTime();
                statement.executeUpdate("INSERT INTO rows VALUES (" + number + ", " + n + ")");
                System.out.println("{\"ms\": " + (System.nanoTime() - begun) / 1e6 + ", \"n\": " + n + "}");
                if (n % 5 == 0) {
                    int count = 0;
                    try (ResultSet rows = statement.executeQuery("SELECT * FROM thousand")) {
                        while (rows.next()) {
                            count++;
                        }
                    }
                    if (count != 1000) {
                        throw new IllegalStateException(count + " rows");
                    }
                }
                Thread.sleep(100);
            }
        }
    }
}
