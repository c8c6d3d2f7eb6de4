//! A delayed network between the nodes that the benchmark starts: a relay on the loopback in front of each node, which
//! delays all bytes by a fixed time in each direction. Unlike `netem`, the relay needs no rights on the machine.
//!
//! Owns: the listener, and two threads for each direction of a connection. The reader notes the arrival time of each
//! block of bytes, and the writer passes the block on after the delay, so the delay does not limit the rate. Bound:
//! [`MAX_WAITING`] blocks of at most [`BLOCK_BYTES`] wait in each direction. Beyond that the sender's socket fills, as
//! on a network with full queues. Does not own: loss, reordering and limits of bandwidth, which the relay does not
//! simulate. A thread that sleeps wakes up to 0.1 ms late, more on a busy machine. This adds to the delay and is part
//! of the printed condition.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Maximum number of blocks of bytes that wait in the relay for the end of their delay, in one direction of a
/// connection.
const MAX_WAITING: usize = 4096;
/// Maximum number of bytes in a block, which the relay reads, delays and passes on as a whole.
const BLOCK_BYTES: usize = 64 << 10;

/// A block of bytes, and the time at which the writer passes it on.
type Block = (Instant, Vec<u8>);

/// A relay in front of one node. After the relay is dropped, it accepts no further connections. Open connections remain
/// until one of their ends closes them.
#[derive(Debug)]
pub(crate) struct Relay {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts a relay that accepts connections at `listener` and passes them on to `to`, with this delay in each
    /// direction.
    pub(crate) fn start(listener: TcpListener, to: SocketAddr, delay: Duration) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let is_over = Arc::<AtomicBool>::default();
        let over = Arc::clone(&is_over);
        let accepting = std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                if over.load(Ordering::Acquire) {
                    return;
                }
                // If the node is down, it refuses the connection. The other node then sees the end of its connection,
                // as it would without a relay.
                std::thread::spawn(move || pass_on(&near, to, delay));
            }
        });
        Ok(Self { address, is_over, accepting: Some(accepting) })
    }

    /// Returns the address of the relay, at which other nodes reach its node.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // This connection wakes the thread that accepts, so that it sees the end.
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

/// Connects to the node at `to`, and passes the bytes of the connection `near` on to it and back, delayed by `delay`,
/// until the connections end.
fn pass_on(near: &TcpStream, to: SocketAddr, delay: Duration) {
    let Ok(far) = TcpStream::connect(to) else { return };
    let both = || -> io::Result<[(TcpStream, TcpStream); 2]> {
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        Ok([(near.try_clone()?, far.try_clone()?), (far.try_clone()?, near.try_clone()?)])
    };
    let Ok(directions) = both() else { return };
    for (from, to) in directions {
        let (send, receive) = sync_channel(MAX_WAITING);
        std::thread::spawn(move || read(from, &send, delay));
        std::thread::spawn(move || write(to, &receive));
    }
}

fn read(mut from: TcpStream, blocks: &SyncSender<Block>, delay: Duration) {
    let mut buffer = vec![0; BLOCK_BYTES];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if blocks.send((Instant::now() + delay, buffer[..count].to_vec())).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Read);
}

fn write(mut to: TcpStream, blocks: &Receiver<Block>) {
    for (due, bytes) in blocks {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    // The shutdown tells the other end that no more bytes come. When that end closes too, the reader of the other
    // direction ends.
    let _ = to.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_takes_both_delays_and_the_order_stays() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = server.local_addr().unwrap();
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            let mut bytes = [0; 4];
            while stream.read_exact(&mut bytes).is_ok() {
                stream.write_all(&bytes).unwrap();
            }
        });
        let delay = Duration::from_millis(10);
        let relay = Relay::start(TcpListener::bind("127.0.0.1:0").unwrap(), to, delay).unwrap();
        let mut client = TcpStream::connect(relay.address()).unwrap();
        let begun = Instant::now();
        // All blocks are delayed at the same time, so the delay counts once.
        for number in 0..100_u32 {
            client.write_all(&number.to_le_bytes()).unwrap();
        }
        for number in 0..100_u32 {
            let mut bytes = [0; 4];
            client.read_exact(&mut bytes).unwrap();
            assert_eq!(u32::from_le_bytes(bytes), number);
        }
        let took = begun.elapsed();
        assert!(took >= 2 * delay, "{took:?}");
        assert!(took < Duration::from_secs(5), "the delays add up: {took:?}");
        drop(client);
        echo.join().unwrap();
        drop(relay);
    }
}
