//! The measured server: one that runs already, or one that the benchmark starts in a process of its own.

use std::{net::SocketAddr, path::Path};

use thalweg_transport::{CERTIFICATE_FILE, Fingerprint, Trust, TrustError};

use super::endpoint::{NativeEndpoint, TransportKind};
use crate::{
    BenchError, Progress, Scratch,
    live::FsyncCount,
    server::{Metrics, NativePort, StartOptions, Target, authority, other_process, resolve},
};

/// Command-line options that select the measured server, or describe how to start one.
#[derive(Clone, Debug, clap::Args)]
pub struct ServerOptions {
    /// Address of a running server's native port, as thalweg://host:port. Without it the benchmark starts a server of
    /// its own.
    #[arg(long, conflicts_with_all = ["server_binary", "server_arg"])]
    pub target: Option<String>,
    /// Id of the target server's process, if it is on this machine. Reports then include its CPU time and memory.
    #[arg(long, value_name = "PID", requires = "target")]
    pub server_process: Option<u32>,
    /// SHA-256 of the target server's certificate, for TLS and QUIC.
    #[arg(long, requires = "target")]
    pub fingerprint: Option<Fingerprint>,
    /// Server to start without a target.
    #[command(flatten)]
    pub start: StartOptions,
    /// Transport of connections; several, separated by commas, are measured one after the other.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tcp")]
    pub transport: Vec<TransportKind>,
}

/// Tuning profiles with which a server can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Profile {
    /// The default profile of the server, between low latency and high throughput.
    Balanced,
    /// Profile for low latency: small batches, short queues.
    Latency,
    /// Profile for high throughput: large batches, long queues.
    Throughput,
}

impl Profile {
    /// Returns the profile's name on the server's command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Balanced => "balanced",
            Self::Latency => "latency",
            Self::Throughput => "throughput",
        }
    }
}

/// A running server to be measured.
#[derive(Debug)]
pub struct Server {
    /// Address of the server's native port.
    pub address: SocketAddr,
    /// Id of the server's process, if it is known.
    pub process: Option<u32>,
    trust: Option<Trust>,
    own: Option<Target>,
}

impl Server {
    /// Connects to the server that the options name. Without a target, starts one with the additional arguments `more`.
    pub fn connect_or_start(
        options: &ServerOptions,
        scratch: &Scratch,
        more: &[String],
        progress: &mut dyn Progress,
    ) -> Result<Self, BenchError> {
        match &options.target {
            Some(target) => Self::running(options, target),
            None => Self::start(options, scratch, more, progress),
        }
    }

    fn running(options: &ServerOptions, target: &str) -> Result<Self, BenchError> {
        let fail = BenchError::target(target);
        let address = authority(target, "thalweg").and_then(resolve).map_err(&fail)?;
        let trust = options.fingerprint.map(Trust::fingerprint);
        if trust.is_none() && options.transport.iter().any(|carrier| *carrier != TransportKind::Tcp) {
            return Err(fail("TLS and QUIC need --fingerprint, the SHA-256 of the server's certificate".to_owned()));
        }
        let process = options.server_process.or_else(|| other_process(address));
        Ok(Self { address, process, trust, own: None })
    }

    fn start(
        options: &ServerOptions,
        scratch: &Scratch,
        more: &[String],
        progress: &mut dyn Progress,
    ) -> Result<Self, BenchError> {
        let data = scratch.fresh("data")?;
        let more = [&options.start.server_arg, more].concat();
        let own = Target::start(options.start.server_binary.as_deref(), &data, NativePort::Free, &more, progress)?;
        let address = own.native.ok_or_else(|| BenchError::target(&own.host)("it has no native port"))?;
        let trust = development_trust(&data).map_err(BenchError::target(&own.host))?;
        Ok(Self { address, process: own.process(), trust, own: Some(own) })
    }

    /// Returns the address of the server's native port, for a transport.
    pub fn place(&self, carrier: TransportKind) -> Result<NativeEndpoint, BenchError> {
        let unknown = "its certificate is not known, so nothing but TCP can be used";
        let endpoint = NativeEndpoint::new(carrier, self.address.to_string(), self.trust.clone());
        endpoint.ok_or_else(|| BenchError::target(self.address)(unknown))
    }

    /// Describes the server in words, for the report.
    pub fn name(&self) -> String {
        match (&self.own, self.process) {
            (Some(_), Some(id)) => format!("own server at {}, process {id}", self.address),
            _ => self.address.to_string(),
        }
    }

    /// Describes the build of the server. It is read from the server's status over HTTP.
    pub fn build(&self) -> String {
        self.own.as_ref().map_or_else(|| "unknown: the server's HTTP port is not known".to_owned(), Target::build)
    }

    /// Returns a counter from the server's metrics, summed over its labels. Returns NaN if the benchmark did not start
    /// the server, because then the server's HTTP port is not known.
    pub fn metric(&self, name: &str) -> f64 {
        self.own.as_ref().and_then(|own| own.metric(name)).unwrap_or(f64::NAN)
    }

    /// Returns the source of the number of fsyncs of the server's log; `None` if the server's HTTP port is not known.
    pub fn fsyncs(&self) -> Option<FsyncCount> {
        self.own.as_ref().map(Target::fsyncs)
    }

    /// Reads all of the server's metrics; `None` if the server's HTTP port is not known.
    pub fn metrics(&self) -> Option<Metrics> {
        self.own.as_ref()?.metrics()
    }
}

/// Returns the trust in the certificate that a server has made for itself in its data directory; `None` if it has made
/// none.
pub fn development_trust(data: &Path) -> Result<Option<Trust>, TrustError> {
    let certificate = Some(data.join(CERTIFICATE_FILE)).filter(|path| path.exists());
    certificate.map(|path| Trust::pem_file(&path)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_given_as_the_server_prints_it() {
        let options = ServerOptions {
            target: None,
            server_process: None,
            fingerprint: None,
            start: StartOptions { server_binary: None, server_arg: Vec::new(), dir: None },
            transport: vec![TransportKind::Tcp],
        };
        let address = SocketAddr::from(([127, 0, 0, 1], 7071));
        for target in ["thalweg://127.0.0.1:7071", "thalweg://127.0.0.1:7071,", "127.0.0.1:7071"] {
            assert_eq!(Server::running(&options, target).unwrap().address, address, "{target}");
        }
        let error = Server::running(&options, "http://127.0.0.1:7070").unwrap_err().to_string();
        assert!(error.contains("thalweg://host:port"), "{error}");
    }
}
