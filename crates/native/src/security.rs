//! Setup of the native port's listener: its transports (TCP, TLS, QUIC) and its certificate.
//!
//! Owns: reading or creating the certificate, reloading it, and logging its state and validity. Does not own:
//! connections.

use std::{
    net::IpAddr,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use thalweg_serving::{
    config::{Config, PemFile},
    time::rfc3339,
};
use thalweg_transport::{
    Fingerprint, Identity, IdentityError, ListenOptions, Listener, QuicOptions, TcpSecurity, Validity,
};
use thalweg_types::SpaceTime;

/// Time before a certificate expires at which the server begins to log warnings.
const NEARLY_OVER: Duration = Duration::from_secs(14 * 24 * 3600);

/// Returns the options of the native port's listener from the configuration. If no certificate files are configured, a
/// certificate is made for `address`.
pub fn options(config: &Config, address: IpAddr) -> Result<ListenOptions, IdentityError> {
    let mut options = ListenOptions::default();
    options.handshake_timeout = config.header_timeout.0;
    options.quic_sockets = config.native_quic_sockets as usize;
    options.quic = quic(config);
    if config.native_tls {
        options.tcp = TcpSecurity::Tls;
    }
    if config.native_tls || config.native_quic_sockets > 0 {
        options.identity = Some(identity(config, address)?);
    }
    Ok(options)
}

fn quic(config: &Config) -> QuicOptions {
    let window = u32::try_from(config.native_quic_window.0).unwrap_or(u32::MAX);
    QuicOptions {
        // If the server does not read one channel, this must not block the others.
        stream_window_bytes: window / 2,
        receive_window_bytes: window,
        send_window_bytes: window,
        // The protocol's keepalive follows from the same setting. It should detect a dead peer before this timeout
        // does.
        idle_timeout: QuicOptions::DEFAULTS.idle_timeout.max(config.idle_timeout.0),
        ..QuicOptions::DEFAULTS
    }
}

fn identity(config: &Config, address: IpAddr) -> Result<Identity, IdentityError> {
    match (&config.native_certificate, &config.native_key) {
        (PemFile::At(certificate), PemFile::At(key)) => Identity::from_pem_files(certificate, key),
        // The check of the configuration ensures that both or neither are files. The server command has a data
        // directory. A database that a program has opened may have another directory, or none.
        _ if config.data.is_dir() => Identity::development(&config.data, address),
        _ => Identity::ephemeral(address),
    }
}

/// The certificate files of a port that uses TLS or QUIC. Used to reload them.
#[derive(Clone, Debug)]
pub struct Certificate {
    served: Identity,
    certificate: PathBuf,
    key: PathBuf,
}

impl Certificate {
    /// Returns the certificate files of a listener. `None` if no files are configured, or if the port uses neither TLS
    /// nor QUIC.
    pub fn of(listener: &Listener, config: &Config) -> Option<Self> {
        match (&config.native_certificate, &config.native_key) {
            (PemFile::At(certificate), PemFile::At(key)) => {
                Some(Self { served: listener.identity()?.clone(), certificate: certificate.clone(), key: key.clone() })
            }
            _ => None,
        }
    }

    /// Reads the certificate files again, for later handshakes. Open connections stay. If a file is unusable, returns
    /// an error and changes nothing. Blocks while it reads the files.
    pub fn reload(&self) -> Result<Fingerprint, IdentityError> {
        self.served.replace(&Identity::from_pem_files(&self.certificate, &self.key)?);
        self.warn_if_expiring();
        Ok(self.served.fingerprint())
    }

    /// Logs a warning if the certificate in use is not valid now or expires soon.
    pub fn warn_if_expiring(&self) {
        warn_if_expiring(&self.served, now());
    }
}

/// Logs the native port's transports, its number of threads, and problems of its configuration.
pub fn announce(listener: &Listener, threads: usize, config: &Config) {
    let address = listener.local_addr();
    let tcp = if config.native_tls { "tls" } else { "plain" };
    tracing::info!(%address, tcp, threads, quic_sockets = config.native_quic_sockets, "serving the native protocol");
    let wanted = QuicOptions::DEFAULTS.socket_buffer_bytes;
    if let Some(got) = listener.udp_buffer_bytes()
        && got < wanted
    {
        tracing::warn!(
            got,
            wanted,
            "the buffers of UDP sockets are too small: raise net.core.rmem_max and net.core.wmem_max"
        );
    }
    if let Some(identity) = listener.identity() {
        warn_if_expiring(identity, now());
    }
    if !address.ip().is_loopback() && !config.native_tls {
        tracing::warn!(%address, "other machines can reach the native port without TLS: others can read its traffic");
    }
}

/// Logs a warning if a certificate is not valid now or expires soon.
fn warn_if_expiring(identity: &Identity, now: Duration) {
    let Some(validity) = identity.validity() else {
        tracing::warn!(
            "the validity period of the native port's certificate cannot be read: clients that check it may reject it"
        );
        return;
    };
    if let Some(what) = CertificateStatus::at(validity, now).warning() {
        let (not_before, not_after) = (date(validity.not_before), date(validity.not_after));
        tracing::warn!(not_before, not_after, "{what}");
    }
}

/// Returns the time since the Unix epoch (1970).
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn date(seconds: i64) -> String {
    rfc3339(SpaceTime(u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000)))
}

/// Validity of a certificate at a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CertificateStatus {
    NotYetValid,
    Valid,
    NearlyOver { days: u64 },
    Expired,
}

impl CertificateStatus {
    fn at(validity: Validity, now: Duration) -> Self {
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now > validity.not_after {
            return Self::Expired;
        }
        if now < validity.not_before {
            return Self::NotYetValid;
        }
        let left = validity.not_after.abs_diff(now);
        if left < NEARLY_OVER.as_secs() { Self::NearlyOver { days: left / (24 * 3600) } } else { Self::Valid }
    }

    /// Returns a warning with the problem and its remedy; `None` for a valid certificate.
    fn warning(self) -> Option<String> {
        const REPLACE: &str = "replace the files of native_certificate and native_key and send SIGHUP";
        match self {
            Self::Valid => None,
            Self::Expired => Some(format!(
                "the native port's certificate, or one of its chain, has expired, and clients that check it reject \
                it: {REPLACE}"
            )),
            Self::NotYetValid => Some(
                "the native port's certificate, or one of its chain, is not valid yet, and clients that check it \
                reject it: check the clock of this machine, or use a valid certificate"
                    .to_owned(),
            ),
            Self::NearlyOver { days } => {
                Some(format!("the native port's certificate, or one of its chain, expires in {days} days: {REPLACE}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_warned_of_outside_of_its_time_and_two_weeks_before_its_end() {
        const DAY: i64 = 24 * 3600;
        let validity = Validity { not_before: 100 * DAY, not_after: 200 * DAY };
        let at = |seconds: i64| CertificateStatus::at(validity, Duration::from_secs(seconds as u64));
        for (seconds, standing) in [
            (100 * DAY - 1, CertificateStatus::NotYetValid),
            (100 * DAY, CertificateStatus::Valid),
            (186 * DAY, CertificateStatus::Valid),
            (186 * DAY + 1, CertificateStatus::NearlyOver { days: 13 }),
            (200 * DAY, CertificateStatus::NearlyOver { days: 0 }),
            (200 * DAY + 1, CertificateStatus::Expired),
        ] {
            assert_eq!(at(seconds), standing, "{seconds}");
            assert_eq!(standing.warning().is_some(), standing != CertificateStatus::Valid);
        }
        assert!(at(199 * DAY).warning().unwrap().contains("expires in 1 days"));
        assert_eq!(date(1_700_000_000), "2023-11-14T22:13:20.000000Z");
    }

    /// Creates a certificate that is valid from the start of 2020 to the start of 2040.
    fn certificate() -> Identity {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2040, 1, 1));
        let key = rcgen::KeyPair::generate().unwrap();
        let files = tempfile::tempdir().unwrap();
        let (certificate, private) = (files.path().join("c.pem"), files.path().join("k.pem"));
        std::fs::write(&certificate, params.self_signed(&key).unwrap().pem()).unwrap();
        std::fs::write(&private, key.serialize_pem()).unwrap();
        Identity::from_pem_files(&certificate, &private).unwrap()
    }

    /// Returns the warnings logged while `work` runs.
    fn logged(work: impl FnOnce()) -> String {
        #[derive(Clone, Default)]
        struct Lines(std::sync::Arc<std::sync::Mutex<String>>);

        impl tracing::field::Visit for Lines {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.lock().unwrap().push_str(&format!("{field}={value:?} "));
            }
        }

        impl tracing::Subscriber for Lines {
            fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
                *metadata.level() <= tracing::Level::WARN
            }

            fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
                tracing::span::Id::from_u64(1)
            }

            fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

            fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

            fn event(&self, event: &tracing::Event<'_>) {
                event.record(&mut self.clone());
            }

            fn enter(&self, _: &tracing::span::Id) {}

            fn exit(&self, _: &tracing::span::Id) {}
        }

        let lines = Lines::default();
        tracing::subscriber::with_default(lines.clone(), work);
        lines.0.lock().unwrap().clone()
    }

    #[test]
    fn the_log_names_the_dates_of_a_certificate_that_clients_will_refuse() {
        const YEAR_2040: u64 = 2_208_988_800;
        let identity = certificate();
        for (now, what) in [
            (YEAR_2040 + 1, Some("has expired")),
            (1_500_000_000, Some("is not valid yet")),
            (YEAR_2040 - 7 * 24 * 3600, Some("expires in 7 days")),
            (1_900_000_000, None),
        ] {
            let said = logged(|| warn_if_expiring(&identity, Duration::from_secs(now)));
            match what {
                None => assert_eq!(said, ""),
                Some(what) => {
                    for part in [what, "2020-01-01T00:00:00", "2040-01-01T00:00:00"] {
                        assert!(said.contains(part), "{said}");
                    }
                }
            }
        }
    }
}
