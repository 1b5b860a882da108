import java.io.IOException;
import java.util.Map;

import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import org.apache.iceberg.inmemory.InMemoryCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/**
 * A REST catalog of Iceberg's own making: the adapter and the servlet that Iceberg tests its clients with, over a
 * catalog in memory. It prints the port that it listens on.
 *
 * <p>Usage: java IcebergCatalog.java WAREHOUSE TOKEN
 */
public class IcebergCatalog {
  public static void main(String[] arguments) throws Exception {
    InMemoryCatalog catalog = new InMemoryCatalog();
    catalog.initialize("tests", Map.of("warehouse", arguments[0]));
    ServletContextHandler context = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
    context.addServlet(new ServletHolder(new Guarded(new RESTCatalogAdapter(catalog), arguments[1])), "/*");
    Server server = new Server();
    ServerConnector connector = new ServerConnector(server);
    connector.setHost("127.0.0.1");
    server.addConnector(connector);
    server.setHandler(context);
    server.start();
    System.out.println(connector.getLocalPort());
    server.join();
  }

  /** The servlet, for clients that have the token. */
  private static class Guarded extends RESTCatalogServlet {
    private final String token;

    Guarded(RESTCatalogAdapter adapter, String token) {
      super(adapter);
      this.token = token;
    }

    @Override
    protected void service(HttpServletRequest request, HttpServletResponse response)
        throws ServletException, IOException {
      if (("Bearer " + token).equals(request.getHeader("Authorization"))) {
        super.service(request, response);
        return;
      }
      response.setStatus(HttpServletResponse.SC_UNAUTHORIZED);
      response.setContentType("application/json");
      response
          .getWriter()
          .print("{\"error\": {\"message\": \"no token\", \"type\": \"NotAuthorizedException\", \"code\": 401}}");
    }
  }
}
