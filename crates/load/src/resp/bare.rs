//! A minimal RESP server that only makes requests durable. Its rate is the upper bound for any durable server on this
//! machine. Runs against it alternate with runs against the other servers, and the durable figures are compared with
//! its figures.
//!
//! Owns: a thread that polls its sockets, reads requests, writes all requests of one poll into a file that was fully
//! written before, syncs the file once, and replies. It has no state, no checksums and no order to keep. It accepts
//! only `SET`, and no value can be read again. It makes only the system calls that every durable server with one thread
//! needs: a read and a write for each socket, a write and an `fdatasync` for each poll.
//!
//! Bound: the server closes the connection of a client that does not read its replies.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::fs::FileExt as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use thalweg_redis::wire::{Input, READ_BYTES, Trust};

use crate::{Event, Poller};

/// Size of the file in bytes. After its end the server continues at position 0, like a log that reuses segments.
const FILE_BYTES: usize = 64 << 20;
/// Longest wait for events in nanoseconds. After each wait, the server checks if it must stop.
const LOOK_NANOS: u64 = 50_000_000;
/// Event token of the listening socket. The tokens of client sockets are smaller.
const LISTENER: u64 = u64::MAX;

/// Handle of a minimal server. Dropping it stops the server.
#[derive(Debug)]
pub struct BareServer {
    /// Address on which the server listens.
    pub address: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl BareServer {
    /// Starts a server whose file is in the directory `dir`.
    pub fn start(dir: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(dir.join("bare"))?;
        file.write_all_at(&vec![0; FILE_BYTES], 0)?;
        file.sync_all()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER)?;
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let bytes = vec![0; READ_BYTES];
        let mut server = Loop { file, at: 0, listener, poller, clients: Vec::new(), bytes, wanted: Vec::new() };
        let thread = std::thread::Builder::new().name("bare-resp".to_owned()).spawn(move || {
            let mut events = Vec::with_capacity(1024);
            while !stop.load(Ordering::Relaxed) {
                // If the disk fails, the server ends, and its clients see their connections closed.
                if server.look(&mut events).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { address, stopping, thread: Some(thread) })
    }
}

impl Drop for BareServer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed.
            let _ = thread.join();
        }
    }
}

struct Loop {
    file: File,
    at: u64,
    listener: TcpListener,
    poller: Poller,
    clients: Vec<Option<Client>>,
    /// Buffer for the bytes of one read from a socket.
    bytes: Vec<u8>,
    /// Bytes of all `SET` requests of the current poll. They are written to the file together.
    wanted: Vec<u8>,
}

struct Client {
    stream: TcpStream,
    input: Input,
    answers: Vec<u8>,
}

impl Loop {
    fn look(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        events.clear();
        self.poller.wait(events, LOOK_NANOS)?;
        for event in events.iter() {
            match event.data.u64() {
                LISTENER => self.accept()?,
                at => self.read(at as usize),
            }
        }
        if !self.wanted.is_empty() {
            if self.at + self.wanted.len() as u64 > FILE_BYTES as u64 {
                self.at = 0;
            }
            self.file.write_all_at(&self.wanted, self.at)?;
            self.file.sync_data()?;
            self.at += self.wanted.len() as u64;
            self.wanted.clear();
        }
        for event in events.iter() {
            if let Some(place) = self.clients.get_mut(event.data.u64() as usize)
                && let Some(client) = place
                && !client.answers.is_empty()
            {
                let sent = client.stream.write_all(&client.answers);
                client.answers.clear();
                if sent.is_err() {
                    *place = None;
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let at = self.clients.iter().position(Option::is_none).unwrap_or(self.clients.len());
        self.poller.add(&stream, at as u64)?;
        let client = Some(Client { stream, input: Input::new(), answers: Vec::new() });
        match self.clients.get_mut(at) {
            Some(place) => *place = client,
            None => self.clients.push(client),
        }
        Ok(())
    }

    fn read(&mut self, at: usize) {
        let Some(place) = self.clients.get_mut(at) else { return };
        let Some(client) = place else { return };
        let is_open = match client.stream.read(&mut self.bytes) {
            Ok(0) => false,
            Ok(count) => {
                client.input.feed(&self.bytes[..count]);
                client.take(&mut self.wanted)
            }
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        if !is_open {
            *place = None;
        }
    }
}

impl Client {
    /// Appends the replies to all complete requests of the input. Appends the bytes of each `SET` to `wanted`. Returns
    /// false if the input is not RESP.
    fn take(&mut self, wanted: &mut Vec<u8>) -> bool {
        loop {
            let request = match self.input.next(Trust::Known) {
                Ok(Some(request)) => request,
                Ok(None) => return true,
                Err(_) => return false,
            };
            let answer: &[u8] = match request.name().to_ascii_uppercase().as_slice() {
                b"SET" => {
                    request.iter().for_each(|part| wanted.extend_from_slice(part));
                    b"+OK\r\n"
                }
                b"SELECT" => b"+OK\r\n",
                b"PING" => b"+PONG\r\n",
                b"HELLO" => b"%1\r\n$5\r\nproto\r\n:3\r\n",
                // redis-benchmark asks for the server's configuration.
                b"CONFIG" => b"*0\r\n",
                _ => b"-ERR the bare server takes SET alone\r\n",
            };
            self.answers.extend_from_slice(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_on_disk_before_they_are_answered() {
        let dir = tempfile::tempdir().unwrap();
        let server = BareServer::start(dir.path()).unwrap();
        let mut client = TcpStream::connect(server.address).unwrap();
        let written = std::fs::File::open(dir.path().join("bare")).unwrap();
        let set = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n";
        client.write_all(&[&set[..], set, b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"].concat()).unwrap();
        let expected = b"+OK\r\n+OK\r\n+PONG\r\n-ERR the bare server takes SET alone\r\n";
        let mut answers = vec![0; expected.len()];
        client.read_exact(&mut answers).unwrap();
        assert_eq!(answers, expected);
        let mut held = [0; 18];
        written.read_exact_at(&mut held, 0).unwrap();
        assert_eq!(&held, b"SETkvalueSETkvalue");
        // Another client still gets replies. A client that does not speak RESP is disconnected.
        let mut other = TcpStream::connect(server.address).unwrap();
        other.write_all(b"*1\r\n$x\r\n").unwrap();
        assert_eq!(other.read(&mut [0; 9]).unwrap(), 0);
        client.write_all(set).unwrap();
        client.read_exact(&mut answers[..5]).unwrap();
        assert_eq!(&answers[..5], b"+OK\r\n");
    }
}
