//! Reloading the configuration and certificates of a running server at SIGHUP.
//!
//! Owns: the log level, which can change while the server runs, and the comparison of the new configuration with the
//! one in use. Does not own the files of certificates (`thalweg_native::security`, `serve::link_tls`).
//!
//! Invariants: once `serve` has parsed its command line and registered for SIGHUP, SIGHUP does not end the process. A
//! SIGHUP that arrives during the start causes a reload when the server runs. If the new configuration has an error, all
//! settings stay as they are.

use std::{io::Write as _, time::Duration};

use thalweg_cluster::PeerTls;
use thalweg_server::{
    config::{Config, ConfigError, KNOBS, LogFormat, LogLevel, Resolved},
    native::security::Certificate,
};
use tokio::signal::unix::Signal;
use tracing_subscriber::{
    Registry,
    filter::{LevelFilter, Targets},
    layer::{Layer as _, SubscriberExt as _},
    reload::{self, Handle},
    util::SubscriberInitExt as _,
};

use super::serve::link_tls;
use crate::{log_fields, render};

/// Time between two warnings about certificates that expire soon. Warnings are repeated because a server may run for
/// longer than its certificates are valid.
const WARN_EVERY: Duration = Duration::from_secs(24 * 3600);

/// Log output whose level can change.
pub(crate) struct Log(Handle<Targets, Registry>);

impl Log {
    /// Writes log lines to stderr from now on, in the format and from the level of the configuration.
    pub(crate) fn to_stderr(config: &Config) -> Self {
        let (level, handle) = reload::Layer::new(filter(config.log_level));
        let lines = tracing_subscriber::fmt::layer().log_internal_errors(false);
        let lines = match config.log_format {
            LogFormat::Text => {
                let lines = lines.with_writer(std::io::stderr).with_ansi(render::stderr_colour());
                lines.fmt_fields(log_fields::escaped()).boxed()
            }
            LogFormat::Json => {
                let lines = lines.with_writer(|| log_fields::JsonLines(std::io::stderr()));
                lines.json().flatten_event(true).boxed()
            }
        };
        tracing_subscriber::registry().with(level).with(lines).init();
        Self(handle)
    }

    fn set(&self, level: LogLevel) {
        if let Err(error) = self.0.reload(filter(level)) {
            // The log output no longer exists, so the message goes directly to stderr.
            let _ = writeln!(std::io::stderr(), "the log level could not be changed: {error}");
        }
    }
}

/// Returns the filter of log lines for a level. Lines of openraft describe its internal steps, so they are logged two
/// levels lower than they state. The crates of this workspace report everything about consensus that operators need.
fn filter(level: LogLevel) -> Targets {
    let (level, of_consensus) = match level {
        LogLevel::Error => (LevelFilter::ERROR, LevelFilter::OFF),
        LogLevel::Warn => (LevelFilter::WARN, LevelFilter::OFF),
        LogLevel::Info => (LevelFilter::INFO, LevelFilter::ERROR),
        LogLevel::Debug => (LevelFilter::DEBUG, LevelFilter::WARN),
        LogLevel::Trace => (LevelFilter::TRACE, LevelFilter::INFO),
    };
    Targets::new().with_default(level).with_target("openraft", of_consensus)
}

/// At each SIGHUP, reloads the configuration and the certificates of the native port and of the links between nodes.
/// `read` reads the configuration as at the start. Also warns once a day about certificates that expire soon.
pub(crate) async fn reload_at(
    mut hangup: Signal,
    mut config: Config,
    (certificate, links): (Option<Certificate>, Option<PeerTls>),
    log: Log,
    read: impl Fn() -> Result<Resolved, ConfigError>,
) {
    let warnings = repeatedly(WARN_EVERY, || {
        certificate.iter().for_each(Certificate::warn_if_expiring);
        links.iter().for_each(link_tls::warn_if_expiring);
    });
    let reloads = async {
        while hangup.recv().await.is_some() {
            match certificate.as_ref().map(Certificate::reload) {
                Some(Ok(fingerprint)) => {
                    tracing::info!(%fingerprint, "SIGHUP: new connections use the reloaded certificate");
                }
                Some(Err(error)) => {
                    tracing::error!(%error, "SIGHUP: the certificate could not be reloaded and is unchanged");
                }
                None => {}
            }
            if let Some(links) = &links {
                link_tls::reload(links);
            }
            match read() {
                Ok(new) => {
                    let new = new.config;
                    log.set(new.log_level);
                    config.log_level = new.log_level;
                    tracing::info!(log_level = config.get("log_level"), "SIGHUP: reloaded the configuration");
                    let later = changed(&config, &new);
                    if !later.is_empty() {
                        let keys = later.join(", ");
                        tracing::warn!(keys, "SIGHUP: changes of these configuration keys take effect after a restart");
                    }
                }
                Err(error) => tracing::error!(%error, "SIGHUP: the configuration has an error and is unchanged"),
            }
        }
    };
    tokio::select! {
        () = warnings => {}
        () = reloads => {}
    }
}

/// Calls `action` each time that `period` has passed, forever.
async fn repeatedly(period: Duration, action: impl Fn()) {
    loop {
        tokio::time::sleep(period).await;
        action();
    }
}

/// Returns the names of the settings with different values in the two configurations.
fn changed(old: &Config, new: &Config) -> Vec<&'static str> {
    let differs = |name: &str| match name {
        // The two secrets are compared directly, because the text of a configuration hides them.
        "resp_password" => old.resp_password != new.resp_password,
        "join_token" => old.join_token != new.join_token,
        name => old.get(name) != new.get(name),
    };
    KNOBS.iter().map(|knob| knob.name).filter(|name| differs(name)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A certificate that is valid when the server starts can expire while the server runs.
    #[tokio::test]
    async fn warnings_are_repeated() {
        let count = AtomicU32::new(0);
        let warned = async {
            while count.load(Ordering::Relaxed) < 3 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = repeatedly(Duration::from_millis(1), || _ = count.fetch_add(1, Ordering::Relaxed)) => {}
            () = warned => {}
        }
        assert!(count.load(Ordering::Relaxed) >= 3);
    }
}
