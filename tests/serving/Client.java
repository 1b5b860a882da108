import java.lang.reflect.Method;
import java.sql.*;

/** What a program does by JDBC; each line that it prints is a fact for the test. */
public class Client {
    public static void main(String[] arguments) throws Exception {
        try (Connection connection = DriverManager.getConnection(arguments[0]);
                Statement statement = connection.createStatement()) {
            DatabaseMetaData about = connection.getMetaData();
            System.out.println(about.getDatabaseProductName());
            try (ResultSet tables = about.getTables(null, null, "jdbc%", null)) {
                while (tables.next()) {
                    System.out.println(tables.getString("TABLE_NAME") + " " + tables.getString("TABLE_TYPE"));
                }
            }
            System.out.println("inserted " + statement.executeUpdate("INSERT INTO jdbc VALUES ('a', 1), ('b', 2)"));
            try (PreparedStatement insert = connection.prepareStatement("INSERT INTO jdbc VALUES (?, ?)")) {
                insert.setString(1, "it's");
                insert.setInt(2, 3);
                System.out.println("inserted " + insert.executeUpdate());
            }
            System.out.println("updated " + statement.executeUpdate("UPDATE jdbc SET n = n + 10 WHERE n > 1"));
            System.out.println("deleted " + statement.executeUpdate("DELETE FROM jdbc WHERE n = 1"));
            try (PreparedStatement query = connection.prepareStatement("SELECT city, n FROM jdbc_view WHERE n = ?")) {
                query.setInt(1, 13);
                try (ResultSet rows = query.executeQuery()) {
                    while (rows.next()) {
                        System.out.println(rows.getString(1) + " " + rows.getInt(2));
                    }
                }
            }
            for (Method fact : DatabaseMetaData.class.getMethods()) { // what tools ask before they show anything
                if (fact.getParameterCount() == 0 && fact.getDeclaringClass() == DatabaseMetaData.class) {
                    Object found = fact.invoke(about);
                    if (found instanceof ResultSet) {
                        ((ResultSet) found).close();
                    }
                }
            }
            try (ResultSet rows = statement.executeQuery("SELECT city, n FROM jdbc_view ORDER BY n")) {
                while (rows.next()) {
                    System.out.println(rows.getString(1) + " " + rows.getInt(2));
                }
            }
            try {
                statement.executeQuery("SELECT nope FROM jdbc");
            } catch (SQLException error) {
                System.out.println(error.getMessage().lines().findFirst().get());
            }
        }
    }
}
