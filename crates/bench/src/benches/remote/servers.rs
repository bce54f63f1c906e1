//! A cluster on this machine: primaries without replicas, killed with the benchmark.

use crate::measure::managed_program::Running;
use softswap_cli::refusal::{OrRefuse, Refusal, plain};
use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(30);

struct Server {
    _process: Running,
    port: u16,
}

pub(super) struct Servers {
    servers: Vec<Server>,
    _directory: tempfile::TempDir,
}

impl Servers {
    /// Starts primaries that share all slots, each limited to `limit_bytes`.
    pub(super) fn start(primaries: u16, limit_bytes: u64) -> Result<Servers, Refusal> {
        let directory = tempfile::tempdir().or_own("cannot create a temporary directory")?;
        let ports = free_ports(2 * usize::from(primaries)).or_own("no free ports on 127.0.0.1")?;
        let servers = ports.chunks(2).map(|ports| {
            let own = directory.path().join(ports[0].to_string());
            std::fs::create_dir(&own).or_own("a server's directory")?;
            server(&own, ports[0], ports[1], limit_bytes)
        });
        let servers = servers.collect::<Result<Vec<_>, _>>()?;
        eventually(&servers, &["PING"], "PONG")?;
        let addresses = servers.iter().map(Server::address).collect::<Vec<_>>();
        let words = ["--cluster-yes", "--cluster", "create"].map(String::from);
        redis_cli(words.into_iter().chain(addresses))?;
        eventually(&servers, &["CLUSTER", "INFO"], "cluster_state:ok")?;
        Ok(Servers { servers, _directory: directory })
    }

    pub(super) fn seeds(&self) -> String {
        self.servers.iter().map(Server::address).collect::<Vec<_>>().join(",")
    }

    pub(super) fn used_bytes(&self) -> Result<u64, Refusal> {
        let used = |server: &Server| {
            let used = server.info("memory", "used_memory:")?;
            used.parse::<u64>().map_err(|_| Refusal::own("a server does not report its memory"))
        };
        self.servers.iter().map(used).sum()
    }

    pub(super) fn empty(&self) -> Result<(), Refusal> {
        self.servers.iter().try_for_each(|server| server.request(&["FLUSHALL"]).map(drop))
    }

    pub(super) fn version(&self) -> String {
        let version = self.servers[0].info("server", "redis_version:");
        version.unwrap_or_else(|_| "?".into())
    }
}

impl Server {
    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn request(&self, command: &[&str]) -> Result<String, Refusal> {
        let options = ["-e".to_string(), "-p".into(), self.port.to_string()];
        redis_cli(options.into_iter().chain(command.iter().map(|word| word.to_string())))
    }

    fn info(&self, section: &str, field: &str) -> Result<String, Refusal> {
        let reply = self.request(&["INFO", section])?;
        let value = reply.lines().find_map(|line| line.strip_prefix(field));
        Ok(value.unwrap_or_default().trim().to_string())
    }
}

fn redis_cli(words: impl Iterator<Item = String>) -> Result<String, Refusal> {
    let output = Command::new("redis-cli").args(words).stdin(Stdio::null()).output();
    let output = output.or_own("redis-cli (Debian: redis-tools)")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(text),
        false => {
            let errors = String::from_utf8_lossy(&output.stderr);
            Err(Refusal::own(format!("redis-cli: {text}{errors}")))
        }
    }
}

fn eventually(servers: &[Server], command: &[&str], text: &str) -> Result<(), Refusal> {
    let start = Instant::now();
    let replies = |server: &Server| server.request(command).is_ok_and(|reply| reply.contains(text));
    while !servers.iter().all(replies) {
        if start.elapsed() > TIMEOUT {
            return Err(Refusal::own(format!(
                "a redis-server does not report {text} within {} s",
                TIMEOUT.as_secs()
            )));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn server(directory: &Path, port: u16, bus_port: u16, limit: u64) -> Result<Server, Refusal> {
    let log = File::create(directory.join("log")).or_own("a server's log")?;
    let settings = format!(
        "bind 127.0.0.1\nport {port}\ncluster-port {bus_port}\ncluster-enabled yes\n\
         cluster-node-timeout 1000\ncluster-require-full-coverage no\nsave \"\"\nappendonly no\n\
         maxmemory {limit}\nmaxmemory-policy noeviction\n"
    );
    std::fs::write(directory.join("redis.conf"), settings).or_own("a server's settings")?;
    let mut command = Command::new("redis-server");
    command.arg("redis.conf").current_dir(directory).stdin(Stdio::null()).stdout(log);
    let process = command.spawn().map_err(|error| {
        Refusal::own(format!(
            "redis-server cannot be started: {}; install it (Debian: redis-server), or measure \
             an existing cluster with --url",
            plain(&error)
        ))
    })?;
    Ok(Server { _process: Running(process), port })
}

fn free_ports(count: usize) -> std::io::Result<Vec<u16>> {
    let held = (0..count).map(|_| TcpListener::bind("127.0.0.1:0"));
    let held: Vec<_> = held.collect::<Result<_, _>>()?;
    held.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}
