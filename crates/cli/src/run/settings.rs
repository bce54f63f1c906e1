//! From what was asked to what holds: flags over environment over file over
//! defaults, every value checked, every refusal naming where the value came from.

use super::areas;
use super::args::RunArgs;
use super::asked::Asked;
use crate::memory_limits;
use crate::refusal::{Refusal, plain};
use crate::units::{self, Amount, parse_amount, parse_size};
use serde::Deserialize;
use softswap_engine::door::config::{BadPoolLimit, Config, MIN_MEMORY_BYTES, PoolLimit};
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// The budget when none is asked for, in percent of what is available.
const DEFAULT_MEMORY_PERCENT: f64 = 50.0;

/// Everything `run` needs to know.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) config: Config,
    pub(super) report: Option<PathBuf>,
    pub(super) quiet: bool,
    /// What is allowed but probably not meant.
    pub(super) notes: Vec<String>,
}

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    memory: Option<toml::Value>,
    swap: Option<toml::Value>,
    reserve: Option<toml::Value>,
    codec: Option<toml::Value>,
    pool: Option<toml::Value>,
    shrink_pool: Option<toml::Value>,
    recompress: Option<toml::Value>,
    no_encrypt: Option<toml::Value>,
    children: Option<toml::Value>,
    report: Option<toml::Value>,
    quiet: Option<toml::Value>,
    poll: Option<toml::Value>,
    no_steer: Option<toml::Value>,
    no_move: Option<toml::Value>,
    no_io_uring: Option<toml::Value>,
}

struct Sources<'a, E> {
    env: E,
    file: File,
    file_path: &'a Path,
}

impl<E: Fn(&str) -> Option<String>> Sources<'_, E> {
    /// The value that wins for `name`, written as in the file (`no_move`).
    fn pick(
        &self,
        name: &str,
        flag: Option<&str>,
        file: Option<&toml::Value>,
    ) -> Result<Option<Asked>, Refusal> {
        if let Some(text) = flag {
            let shown = format!("--{} {text}", name.replace('_', "-"));
            return Ok(Some(Asked { text: text.into(), shown }));
        }
        let variable = format!("SOFTSWAP_{}", name.to_ascii_uppercase());
        if let Some(text) = (self.env)(&variable).filter(|text| !text.is_empty()) {
            let shown = format!("{variable}={text}");
            return Ok(Some(Asked { text, shown }));
        }
        file.map(|value| self.in_file(name, value)).transpose()
    }

    /// As [`Sources::pick`] for what may be given several times: flags of one
    /// kind, `;` in the variable, an array in the file.
    fn pick_all(
        &self,
        name: &str,
        flags: &[String],
        file: Option<&toml::Value>,
    ) -> Result<Vec<Asked>, Refusal> {
        if !flags.is_empty() {
            let each = flags.iter().map(|text| Asked {
                text: text.clone(),
                shown: format!("--{} {text}", name.replace('_', "-")),
            });
            return Ok(each.collect());
        }
        if let Some(asked) = self.pick(name, None, None)? {
            let each = areas::each(&asked.text);
            let each = each.map(|text| Asked { text: text.into(), shown: asked.shown.clone() });
            return Ok(each.collect());
        }
        match file {
            Some(toml::Value::Array(values)) => {
                values.iter().map(|value| self.in_file(name, value)).collect()
            }
            other => other.map(|value| self.in_file(name, value)).into_iter().collect(),
        }
    }

    fn in_file(&self, name: &str, value: &toml::Value) -> Result<Asked, Refusal> {
        let text = match value {
            toml::Value::String(text) => text.clone(),
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Boolean(on) => on.to_string(),
            other => {
                return Err(Refusal::usage(format!(
                    "{}: `{name}` is of type {}; give text, a number or true/false",
                    self.file_path.display(),
                    other.type_str()
                )));
            }
        };
        let shown = format!("{name} = {text} in {}", self.file_path.display());
        Ok(Asked { text, shown })
    }

    fn switch(&self, name: &str, flag: bool, file: Option<&toml::Value>) -> Result<bool, Refusal> {
        let Some(asked) = self.pick(name, flag.then_some("true"), file)? else {
            return Ok(false);
        };
        match asked.text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(true),
            "0" | "false" | "no" | "off" => Ok(false),
            _ => Err(asked.refuse("give true or false")),
        }
    }
}

/// Settles and checks every setting.
pub(super) fn settle(
    args: &RunArgs,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Settled, Refusal> {
    let file_path = args
        .config
        .clone()
        .or_else(|| env("SOFTSWAP_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from));
    let file = file_path.as_deref().map(read_file).transpose()?.unwrap_or_default();
    let file_path = file_path.unwrap_or_default();
    let sources = Sources { env, file, file_path: &file_path };
    let file = &sources.file;
    let mut notes = Vec::new();
    let defaults = Config::default();

    let memory = sources.pick("memory", args.memory.as_deref(), file.memory.as_ref())?;
    let memory_bytes = settle_memory(memory.as_ref(), &mut notes)?;
    let reserve = sources.pick("reserve", args.reserve.as_deref(), file.reserve.as_ref())?;
    let reserve_bytes = parsed(reserve.as_ref(), defaults.reserve_bytes, parse_size)?;
    let swap = sources.pick_all("swap", &args.swap, file.swap.as_ref())?;
    let areas = areas::settle(swap, &defaults.areas, reserve_bytes, &mut notes)?;
    let codec = sources.pick("codec", args.codec.as_deref(), file.codec.as_ref())?;
    let codec = parsed(codec.as_ref(), defaults.codec, str::parse)?;
    let pool = sources.pick("pool", args.pool.as_deref(), file.pool.as_ref())?;
    let pool = parsed(pool.as_ref(), defaults.pool, parse_pool)?;
    let children = sources.pick("children", args.children.as_deref(), file.children.as_ref())?;
    let poll = sources.pick("poll", args.poll.as_deref(), file.poll.as_ref())?;
    let poll = parsed(poll.as_ref(), defaults.poll, str::parse)?;
    let report = args.report.as_deref().map(Path::to_string_lossy);
    let report = sources.pick("report", report.as_deref(), file.report.as_ref())?;

    let config = Config {
        memory_bytes,
        areas,
        reserve_bytes,
        pool,
        shrink_pool: sources.switch("shrink_pool", args.shrink_pool, file.shrink_pool.as_ref())?,
        recompress: sources.switch("recompress", args.recompress, file.recompress.as_ref())?,
        encrypt: !sources.switch("no_encrypt", args.no_encrypt, file.no_encrypt.as_ref())?,
        codec,
        manage_children: choose(children.as_ref(), ["managed", "plain"])?,
        avoid_move: sources.switch("no_move", args.no_move, file.no_move.as_ref())?,
        avoid_io_uring: sources.switch(
            "no_io_uring",
            args.no_io_uring,
            file.no_io_uring.as_ref(),
        )?,
        poll,
        steer: !sources.switch("no_steer", args.no_steer, file.no_steer.as_ref())?,
        stats_fd: None,
        supervisor_pid: None,
        place: None,
    };
    Ok(Settled {
        config,
        report: args.report.clone().or(report.map(|asked| asked.text.into())),
        quiet: sources.switch("quiet", args.quiet, file.quiet.as_ref())?,
        notes,
    })
}

/// What was asked for, or the default.
fn parsed<T, E: Display>(
    asked: Option<&Asked>,
    default: T,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, Refusal> {
    asked.map_or(Ok(default), |asked| parse(&asked.text).map_err(|why| asked.refuse(why)))
}

/// A share as the engine reads it, a size as everywhere else on the command line.
pub(crate) fn parse_pool(text: &str) -> Result<PoolLimit, BadPoolLimit> {
    text.parse().or_else(|bad| match parse_size(text) {
        Ok(bytes) if text.ends_with(char::is_alphabetic) => Ok(PoolLimit::Bytes(bytes)),
        _ => Err(bad),
    })
}

fn read_file(path: &Path) -> Result<File, Refusal> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Refusal::usage(format!("--config {shown}: the file cannot be read: {}", plain(&error)))
    })?;
    parse_file(&text).map_err(|why| Refusal::usage(format!("--config {shown}: {why}")))
}

fn parse_file(text: &str) -> Result<File, String> {
    toml::from_str(text).map_err(|error| error.to_string().trim().to_string())
}

/// The settings in a file's text as far as they can be understood without
/// looking at the machine.
pub(crate) fn understand(text: &str) -> Result<Vec<(String, String)>, String> {
    let file = parse_file(text)?;
    let table: toml::Table = text.parse().map_err(|error| format!("{error}"))?;
    let env = |_: &str| None;
    let sources = Sources { env, file, file_path: Path::new("it") };
    let mut understood = Vec::new();
    for (name, value) in &table {
        let values = sources.pick_all(name, &[], Some(value)).map_err(|why| why.to_string())?;
        understood.extend(values.into_iter().map(|asked| (name.clone(), asked.text)));
    }
    Ok(understood)
}

/// True for the first of two words and by default, false for the second.
fn choose(asked: Option<&Asked>, words: [&str; 2]) -> Result<bool, Refusal> {
    match asked {
        None => Ok(true),
        Some(asked) if asked.text == words[0] => Ok(true),
        Some(asked) if asked.text == words[1] => Ok(false),
        Some(asked) => Err(asked.refuse(format!("give {} or {}", words[0], words[1]))),
    }
}

fn settle_memory(asked: Option<&Asked>, notes: &mut Vec<String>) -> Result<u64, Refusal> {
    let default = Asked {
        text: format!("{DEFAULT_MEMORY_PERCENT}%"),
        shown: format!("--memory {DEFAULT_MEMORY_PERCENT}% (the default)"),
    };
    let asked = asked.unwrap_or(&default);
    let (bytes, of) = match parse_amount(&asked.text).map_err(|why| asked.refuse(why))? {
        Amount::Bytes(bytes) => (bytes, String::new()),
        Amount::Percent(percent) => {
            let available = memory_limits::available();
            let bytes = (available.bytes as f64 * percent / 100.0) as u64;
            let of = format!(
                " ({} of {} available by {})",
                units::bytes(bytes),
                units::bytes(available.bytes),
                available.because
            );
            (bytes, of)
        }
    };
    if bytes < MIN_MEMORY_BYTES {
        return Err(asked.refuse(format!(
            "too little{of}: the engine needs at least {} of DRAM; ask for more, such as --memory 256M",
            units::bytes(MIN_MEMORY_BYTES)
        )));
    }
    let physical = memory_limits::physical_bytes();
    if bytes > physical {
        notes.push(format!(
            "{} is more than the machine's {} of DRAM: the kernel may have to swap, or kill the program",
            asked.shown,
            units::bytes(physical)
        ));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use softswap_engine::codec::{Choice, Packer};
    use softswap_engine::door::config::AreaSpec;
    use softswap_engine::store::io::poll::mode::Mode;

    #[derive(Parser)]
    struct Harness {
        #[command(flatten)]
        args: RunArgs,
    }

    fn settle_with(flags: &[&str], env: &[(&str, &str)]) -> Result<Settled, Refusal> {
        let line = ["run"].iter().chain(flags).chain(&["--", "true"]);
        let args = Harness::try_parse_from(line).unwrap().args;
        settle(&args, |name| {
            let found = env.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_string())
        })
    }

    #[test]
    fn a_pool_is_a_share_or_any_size() {
        assert_eq!(parse_pool("1.5GiB"), Ok(PoolLimit::Bytes(3 << 29)));
        assert_eq!(parse_pool("64MB"), Ok(PoolLimit::Bytes(64_000_000)));
        assert_eq!(parse_pool("20%"), Ok(PoolLimit::Percent(20)));
        for text in ["81", "100", "4.5", "4.5%", "-1M", "pool"] {
            assert!(parse_pool(text).is_err(), "{text}");
        }
    }

    #[test]
    fn flags_win_over_environment_over_file_over_defaults() {
        let dir = tempfile::tempdir().unwrap();
        let swap = dir.path().to_str().unwrap();
        let path = dir.path().join("softswap.toml");
        std::fs::write(
            &path,
            "memory = \"100M\"\npool = 10\ncodec = \"none\"\nno_move = true\npoll = \"hybrid\"\n\
             no_steer = true\n",
        )
        .unwrap();
        let path = path.to_str().unwrap();
        let env =
            [("SOFTSWAP_MEMORY", "200M"), ("SOFTSWAP_POOL", "20%"), ("SOFTSWAP_RESERVE", "0")];
        let settled =
            settle_with(&["--config", path, "--memory", "300M", "--swap", swap], &env).unwrap();
        assert_eq!(settled.config.memory_bytes, 300 << 20);
        assert_eq!(settled.config.pool, PoolLimit::Percent(20));
        assert_eq!(settled.config.codec, Choice::NONE);
        assert!(settled.config.avoid_move);
        assert_eq!(settled.config.poll, Mode::Hybrid);
        assert!(!settled.config.steer);
        assert!(settled.config.manage_children && settled.config.encrypt);
        assert_eq!(settled.config.reserve_bytes, 0);
    }

    #[test]
    fn a_codec_is_asked_for_by_name_and_level() {
        let dir = tempfile::tempdir().unwrap();
        let swap = dir.path().to_str().unwrap();
        let codec = |flags: &[&str], env: &[(&str, &str)]| {
            let flags = [&["--reserve", "0", "--swap", swap], flags].concat();
            settle_with(&flags, env).map(|settled| settled.config.codec)
        };
        let zstd = |level| Choice::Fixed(Some(Packer::Zstd { level }));
        assert_eq!(codec(&[], &[]).unwrap(), Choice::Auto);
        assert_eq!(codec(&["--codec", "lz4"], &[]).unwrap(), Choice::LZ4);
        assert_eq!(codec(&["--codec", "zstd"], &[]).unwrap(), zstd(1));
        assert_eq!(codec(&[], &[("SOFTSWAP_CODEC", "zstd:3")]).unwrap(), zstd(3));
        let error = codec(&[], &[("SOFTSWAP_CODEC", "zstd:99")]).unwrap_err().to_string();
        assert!(error.starts_with("SOFTSWAP_CODEC=zstd:99: \"zstd:99\" is no codec"), "{error}");
    }

    #[test]
    fn encryption_is_turned_off_by_any_source_and_on_by_none() {
        let dir = tempfile::tempdir().unwrap();
        let swap = dir.path().to_str().unwrap();
        let path = dir.path().join("softswap.toml");
        std::fs::write(&path, "no_encrypt = true\n").unwrap();
        let encrypts = |flags: &[&str], env: &[(&str, &str)]| {
            let flags = [&["--reserve", "0", "--swap", swap], flags].concat();
            settle_with(&flags, env).unwrap().config.encrypt
        };
        let file = ["--config", path.to_str().unwrap()];
        assert!(encrypts(&[], &[]));
        assert!(!encrypts(&["--no-encrypt"], &[]));
        assert!(!encrypts(&[], &[("SOFTSWAP_NO_ENCRYPT", "1")]));
        assert!(!encrypts(&file, &[]));
        assert!(encrypts(&file, &[("SOFTSWAP_NO_ENCRYPT", "0")]));
    }

    #[test]
    fn an_empty_variable_is_no_setting() {
        let env = [("SOFTSWAP_MEMORY", ""), ("SOFTSWAP_QUIET", "no"), ("SOFTSWAP_RESERVE", "0")];
        let dir = tempfile::tempdir().unwrap();
        let settled = settle_with(&["--swap", dir.path().to_str().unwrap()], &env).unwrap();
        assert!(settled.config.memory_bytes >= MIN_MEMORY_BYTES);
        assert!(!settled.quiet);
    }

    #[test]
    fn areas_come_from_flags_or_the_environment_or_the_file() {
        let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
        let [one, two] = [0, 1].map(|at| dirs[at].path().to_str().unwrap());
        let path = dirs[0].path().join("softswap.toml");
        std::fs::write(&path, format!("swap = [\"{one},pri=3\", \"{two}:1G\"]\n")).unwrap();
        let path = path.to_str().unwrap();
        let areas = |flags: &[&str], env: &[(&str, &str)]| {
            let areas =
                settle_with(&[&["--reserve", "0"], flags].concat(), env).unwrap().config.areas;
            let of = |area: AreaSpec| (area.path, area.priority, area.limit_bytes);
            areas.into_iter().map(of).collect::<Vec<_>>()
        };
        let (one_path, two_path) = (PathBuf::from(one), PathBuf::from(two));
        assert_eq!(
            areas(&["--config", path], &[]),
            [(one_path.clone(), Some(3), None), (two_path.clone(), None, Some(1 << 30))]
        );
        let both = format!("{two};{one},pri=7");
        assert_eq!(
            areas(&["--config", path], &[("SOFTSWAP_SWAP", &both)]),
            [(two_path.clone(), None, None), (one_path.clone(), Some(7), None)]
        );
        assert_eq!(
            areas(&["--swap", one, "--swap", two], &[("SOFTSWAP_SWAP", &both)]),
            [(one_path, None, None), (two_path, None, None)]
        );
    }

    #[test]
    fn where_a_bad_value_came_from_is_said() {
        let error = settle_with(&[], &[("SOFTSWAP_MEMORY", "banana")]).unwrap_err().to_string();
        assert!(error.starts_with("SOFTSWAP_MEMORY=banana: not a size"), "{error}");
        let error = settle_with(&["--memory", "0"], &[]).unwrap_err().to_string();
        assert!(error.starts_with("--memory 0: too little"), "{error}");
    }
}
