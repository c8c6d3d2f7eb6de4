//! The server that is measured: one that runs already, or one of our own in a process of its own.

use std::{
    net::{SocketAddr, ToSocketAddrs as _},
    path::{Path, PathBuf},
};

use serde::Serialize;
use thalweg_transport::{CERTIFICATE_FILE, Endpoint, Fingerprint, Trust};

use super::place::{Carrier, Place};
use crate::{
    BenchError, Progress, Scratch,
    load::target::{NativePort, Target},
};

/// The measured server's address, or how one is started.
#[derive(Clone, Debug, clap::Args)]
pub struct ServerOptions {
    /// Native port of a server that runs already, as host:port. Without it one is started in a process of its own.
    #[arg(long)]
    pub target: Option<String>,
    /// Process of that server, if it is on this machine: its CPU time and memory are told.
    #[arg(long, value_name = "PID", requires = "target")]
    pub server_process: Option<u32>,
    /// SHA-256 of that server's certificate, for TLS and QUIC.
    #[arg(long, requires = "target")]
    pub fingerprint: Option<Fingerprint>,
    /// The command to start as `COMMAND serve` when no target is given; this one by default.
    #[arg(long)]
    pub server_binary: Option<PathBuf>,
    /// More arguments for the started server.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub server_arg: Vec<String>,
    /// Directory below which the started server keeps its data; decides which disk is measured.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Transport of connections; several, separated by commas, are measured one after the other.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tcp")]
    pub transport: Vec<Carrier>,
}

/// Profiles of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// The server's default.
    Balanced,
    /// Small batches, short queues.
    Latency,
    /// Large batches, long queues.
    Throughput,
}

impl Profile {
    /// Returns the name that the server's option has.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Balanced => "balanced",
            Self::Latency => "latency",
            Self::Throughput => "throughput",
        }
    }
}

/// A server to be measured.
#[derive(Debug)]
pub struct Server {
    /// Address of its native port.
    pub address: SocketAddr,
    /// Its process, if it is known.
    pub process: Option<u32>,
    trust: Option<Trust>,
    own: Option<Target>,
}

impl Server {
    /// Reaches the server that the options name, or starts one, with a profile and a knob if they are given.
    pub fn reach(
        options: &ServerOptions,
        scratch: &Scratch,
        profile: Option<Profile>,
        knob: Option<&str>,
        progress: &mut dyn Progress,
    ) -> Result<Self, BenchError> {
        match &options.target {
            Some(target) => Self::running(options, target),
            None => Self::start(options, scratch, profile, knob, progress),
        }
    }

    fn running(options: &ServerOptions, target: &str) -> Result<Self, BenchError> {
        let fail = |message: &str| BenchError::Target { target: target.to_owned(), message: message.to_owned() };
        let mut found = target.to_socket_addrs().map_err(|error| fail(&format!("{error}; is it host:port?")))?;
        let address = found.next().ok_or_else(|| fail("the name has no address"))?;
        let trust = options.fingerprint.map(Trust::fingerprint);
        if trust.is_none() && options.transport.iter().any(|carrier| *carrier != Carrier::Tcp) {
            return Err(fail("TLS and QUIC need --fingerprint, the SHA-256 of the server's certificate"));
        }
        Ok(Self { address, process: options.server_process, trust, own: None })
    }

    fn start(
        options: &ServerOptions,
        scratch: &Scratch,
        profile: Option<Profile>,
        knob: Option<&str>,
        progress: &mut dyn Progress,
    ) -> Result<Self, BenchError> {
        let data = scratch.fresh("data")?;
        let mut more = options.server_arg.clone();
        more.extend(profile.map(|profile| format!("--profile={}", profile.name())));
        more.extend(knob.into_iter().flat_map(str::split_whitespace).map(str::to_owned));
        let target = Target::start(options.server_binary.as_deref(), &data, NativePort::Free, &more, progress)?;
        let fail = |message: String| BenchError::Target { target: target.host.clone(), message };
        let address = target.native.ok_or_else(|| fail("it has no native port".to_owned()))?;
        let trust = certificate(&data).map(|path| Trust::pem_file(&path)).transpose();
        let trust = trust.map_err(|error| fail(error.to_string()))?;
        Ok(Self { address, process: target.process(), trust, own: Some(target) })
    }

    /// Returns its native port over one of the transports.
    pub fn place(&self, carrier: Carrier) -> Result<Place, BenchError> {
        let address = self.address.to_string();
        let trust = || {
            self.trust.clone().ok_or_else(|| BenchError::Target {
                target: address.clone(),
                message: "its certificate is not known, so nothing but TCP can be used".to_owned(),
            })
        };
        let endpoint = match carrier {
            Carrier::Tcp => Endpoint::tcp(address),
            Carrier::Tls => Endpoint::tls(address.clone(), trust()?),
            Carrier::Quic => Endpoint::quic(address.clone(), trust()?),
        };
        Ok(Place { carrier, endpoint })
    }

    /// Describes the server, for the report.
    #[must_use]
    pub fn name(&self) -> String {
        match (&self.own, self.process) {
            (Some(_), Some(id)) => format!("own server at {}, process {id}", self.address),
            _ => self.address.to_string(),
        }
    }

    /// A counter from its metrics, summed over labels; only of a server of our own, whose HTTP port is known.
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.own.as_ref()?.metric(name)
    }
}

/// Returns the path of the certificate that the server has made for itself.
fn certificate(data: &Path) -> Option<PathBuf> {
    Some(data.join(CERTIFICATE_FILE)).filter(|path| path.exists())
}
