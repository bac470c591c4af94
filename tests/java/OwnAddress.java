import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.channels.SocketChannel;

/** Connections leave from a router's own address, where several routers share one network namespace: routers check that
 *  it is the one that a peer publishes, and Java I2P does not bind what it connects. */
public class OwnAddress extends sun.nio.ch.EPollSelectorProvider {
    @Override
    public SocketChannel openSocketChannel() throws IOException {
        return super.openSocketChannel().bind(new InetSocketAddress(System.getProperty("garlicfarm.address"), 0));
    }
}
