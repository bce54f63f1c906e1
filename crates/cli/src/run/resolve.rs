//! Resolves and checks the settings: flags before environment before file before defaults.

use super::advertised;
use super::areas;
use super::auto_memory::{Bounds, fitting_bytes, note_on_excess};
use super::options::{CommandLineOptions, RunArgs, options};
use super::sourced::{Sourced, without_password};
use super::unknown_variables::{check_variables, unknown_variables, variable_of};
use crate::refusal::{Refusal, plain};
use softswap_engine::api::settings::{BadPoolLimit, Config, MIN_MEMORY_BYTES, PoolLimit};
use softswap_sys::memory::dram_bytes;
use softswap_sys::memory_limits;
use softswap_view::units::{self, Amount, parse_amount, parse_size};
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) config: Config,
    pub(super) common: areas::Common,
    pub(super) is_per_process: bool,
    /// Set if the tree's budget follows the machine.
    pub(super) auto: Option<Bounds>,
    pub(super) usable_bytes: u64,
    pub(super) reports: Vec<PathBuf>,
    pub(super) log: Option<PathBuf>,
    pub(super) verbose: bool,
    pub(super) progress: bool,
    pub(super) parks_on_stop: bool,
    pub(super) notes: Vec<String>,
}

const SEVERAL: [&str; 2] = ["swap", "report"];
pub(crate) const CHILDREN: [&str; 2] = ["managed", "plain"];

struct Budget {
    bytes: u64,
    is_per_process: bool,
    /// Set if it follows the machine.
    auto: Option<Bounds>,
}

struct Sources<'a, E> {
    given: &'a CommandLineOptions,
    env: E,
    file: toml::Table,
    file_path: PathBuf,
}

impl<'a, E: Fn(&str) -> Option<String>> Sources<'a, E> {
    /// Reads the file of `--config`, else that of the variable.
    fn read(
        given: &'a CommandLineOptions,
        config: Option<PathBuf>,
        env: E,
        options: &[clap::Arg],
    ) -> Result<Self, Refusal> {
        let in_env = || env("SOFTSWAP_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
        let file_path = config.or_else(in_env);
        let file = file_path.as_deref().map(|path| read_file(path, options)).transpose()?;
        let (file, file_path) = (file.unwrap_or_default(), file_path.unwrap_or_default());
        Ok(Self { given, env, file, file_path })
    }

    fn reserve_bytes(&self) -> Result<u64, Refusal> {
        match self.pick("reserve")? {
            Some(reserve) => parse_size(&reserve.text).map_err(|why| reserve.refuse(why)),
            None => Ok(Config::default().reserve_bytes),
        }
    }

    fn budget(&self, notes: &mut Vec<String>) -> Result<Budget, Refusal> {
        let per_process = self.pick_unless("memory_per_process", "memory")?;
        let is_per_process = per_process.is_some();
        let asked = match per_process {
            Some(asked) => Some(asked),
            None => self.pick("memory")?,
        };
        let Some(asked) = asked else {
            let bounds = Bounds::default();
            return Ok(Budget { bytes: bounds.first(), auto: Some(bounds), is_per_process });
        };
        let (bytes, auto) = resolve_memory(&asked, is_per_process, notes)?;
        Ok(Budget { bytes, auto, is_per_process })
    }

    fn parks_on_stop(&self, is_per_process: bool) -> Result<bool, Refusal> {
        match self.pick("park_on")? {
            None => Ok(false),
            Some(asked) if asked.text != "SIGTSTP" => Err(asked.refuse("give SIGTSTP")),
            Some(asked) if is_per_process => {
                Err(asked.refuse("only a tree with one budget (--memory) can be parked"))
            }
            Some(_) => Ok(true),
        }
    }

    /// `name` is spelled as in the file (`no_move`).
    fn pick(&self, name: &str) -> Result<Option<Sourced>, Refusal> {
        Ok(self.pick_all(name)?.pop())
    }

    /// Returns the values of a repeatable option: repeated flags, `;` in the variable, an array.
    fn pick_all(&self, name: &str) -> Result<Vec<Sourced>, Refusal> {
        let given = self.given.values(name);
        if !given.is_empty() {
            let name = name.replace('_', "-");
            let shown = |text: &String| format!("--{name} {}", without_password(text));
            return Ok(given
                .iter()
                .map(|text| Sourced { text: text.clone(), shown: shown(text) })
                .collect());
        }
        if let Some(text) = self.in_env(name) {
            let variable = variable_of(name);
            let shown = format!("{variable}={}", without_password(&text));
            let each = |text: &str| Sourced { text: text.into(), shown: shown.clone() };
            if !SEVERAL.contains(&name) {
                return Ok(vec![each(&text)]);
            }
            let values: Vec<_> = areas::each(&text).map(each).collect();
            // A value that consists of semicolons names no area.
            return Ok(if values.is_empty() { vec![each("")] } else { values });
        }
        match self.file.get(name) {
            Some(toml::Value::Array(values)) if SEVERAL.contains(&name) => {
                values.iter().map(|value| self.in_file(name, value)).collect()
            }
            other => other.map(|value| self.in_file(name, value)).into_iter().collect(),
        }
    }

    /// `None` if `other` was given in a source with higher precedence.
    fn pick_unless(&self, name: &str, other: &str) -> Result<Option<Sourced>, Refusal> {
        if self.rank(other) < self.rank(name) { Ok(None) } else { self.pick(name) }
    }

    /// The source with the lowest rank applies.
    fn rank(&self, name: &str) -> usize {
        let places = [
            !self.given.values(name).is_empty(),
            self.in_env(name).is_some(),
            self.file.contains_key(name),
        ];
        places.iter().position(|has| *has).unwrap_or(places.len())
    }

    /// An empty variable counts as unset.
    fn in_env(&self, name: &str) -> Option<String> {
        (self.env)(&variable_of(name)).filter(|text| !text.is_empty())
    }

    fn in_file(&self, name: &str, value: &toml::Value) -> Result<Sourced, Refusal> {
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
        let shown = format!("{name} = {} in {}", without_password(&text), self.file_path.display());
        Ok(Sourced { text, shown })
    }

    fn switch(&self, name: &str) -> Result<Option<bool>, Refusal> {
        let Some(asked) = self.pick(name)? else { return Ok(None) };
        match asked.text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(Some(true)),
            "0" | "false" | "no" | "off" => Ok(Some(false)),
            _ => Err(asked.refuse("give true or false")),
        }
    }
}

/// Settings in the engine's table are resolved in a loop, sizes and areas one by one.
pub(super) fn resolve(
    args: &RunArgs,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Resolved, Refusal> {
    let options = options();
    let is_given = |name: &str| match name {
        "config" => args.config.is_some(),
        "log" => args.log.is_some(),
        "report" => !args.report.is_empty(),
        name => !args.given.values(name).is_empty(),
    };
    let names = options.iter().map(|option| option.get_id().as_str());
    check_variables(names.filter(|name| !is_given(name)))?;
    let sources = Sources::read(&args.given, args.config.clone(), env, &options)?;
    let mut notes = Vec::new();
    let mut config = Config::default();
    for option in &options {
        resolve_one(option, &sources, &mut config)?;
    }
    let budget = sources.budget(&mut notes)?;
    let parks_on_stop = sources.parks_on_stop(budget.is_per_process)?;
    config.memory_bytes = budget.bytes;
    config.is_moving = budget.auto.is_some() || parks_on_stop;
    config.reserve_bytes = sources.reserve_bytes()?;
    notes.extend(unknown_variables(&options, std::env::vars_os()));
    let swap = sources.pick_all("swap")?;
    let common;
    (config.areas, common) = areas::resolve(swap, &config.areas, config.reserve_bytes, &mut notes)?;
    let usable_bytes = advertised::usable_bytes(&config, &common);
    config.advertised_bytes = match sources.pick("tell")? {
        Some(asked) => advertised::resolve(&asked, config.memory_bytes, usable_bytes)?,
        None => 0,
    };
    let children = sources.pick("children")?;
    config.manage_children = choose(children.as_ref(), CHILDREN)?;
    let reports = match args.report.is_empty() {
        true => sources.pick_all("report")?.into_iter().map(|asked| asked.text.into()).collect(),
        // A path need not be valid text.
        false => args.report.clone(),
    };
    let log = sources.pick("log")?;
    let verbose = sources.switch("verbose")?.unwrap_or(false);
    let is_overruled = verbose && sources.rank("verbose") < sources.rank("quiet");
    config.quiet &= !is_overruled;
    Ok(Resolved {
        config,
        common,
        is_per_process: budget.is_per_process,
        auto: budget.auto,
        usable_bytes,
        reports,
        log: args.log.clone().or(log.map(|asked| asked.text.into())),
        verbose,
        progress: sources.switch("progress")?.unwrap_or(false),
        parks_on_stop,
        notes,
    })
}

pub(crate) struct Storage {
    pub(crate) reserve_bytes: u64,
    /// An empty list stands for the default.
    pub(crate) areas: Vec<Sourced>,
}

pub(crate) fn resolve_storage(with_areas: bool) -> Result<Storage, Refusal> {
    let (given, options) = (CommandLineOptions::default(), options());
    check_variables(["config", "reserve"].into_iter().chain(with_areas.then_some("swap")))?;
    let sources = Sources::read(&given, None, |name| std::env::var(name).ok(), &options)?;
    let areas = if with_areas { sources.pick_all("swap")? } else { Vec::new() };
    Ok(Storage { reserve_bytes: sources.reserve_bytes()?, areas })
}

/// `--no-encrypt` turns `encrypt` off, `--no-move` turns `avoid_move` on.
fn resolve_one<E: Fn(&str) -> Option<String>>(
    option: &clap::Arg,
    sources: &Sources<'_, E>,
    config: &mut Config,
) -> Result<(), Refusal> {
    let name = option.get_id().as_str();
    let is_switch = !option.get_action().takes_values();
    let without = name.strip_prefix("no_").unwrap_or_default();
    let avoid = format!("avoid_{without}");
    let (setting, turns_on) = match name {
        _ if Config::has(name) => (name, true),
        _ if Config::has(without) => (without, false),
        _ if Config::has(&avoid) => (avoid.as_str(), true),
        _ => return Ok(()),
    };
    if is_switch {
        let on = sources.switch(name)?;
        return on.map_or(Ok(()), |on| {
            let text = (on == turns_on).to_string();
            config.set(setting, &text).map_err(Refusal::usage)
        });
    }
    let Some(asked) = sources.pick(name)? else { return Ok(()) };
    let text = match setting {
        "pool" => parse_pool(&asked.text).map_err(|why| asked.refuse(why))?.to_string(),
        _ => asked.text.clone(),
    };
    config.set(setting, &text).map_err(|why| asked.refuse(why))
}

/// A share is as in the engine, a size as elsewhere on the command line.
pub(crate) fn parse_pool(text: &str) -> Result<PoolLimit, BadPoolLimit> {
    text.parse().or_else(|bad| match parse_size(text) {
        Ok(bytes) if text.ends_with(char::is_alphabetic) => Ok(PoolLimit::Bytes(bytes)),
        _ => Err(bad),
    })
}

fn read_file(path: &Path, options: &[clap::Arg]) -> Result<toml::Table, Refusal> {
    let shown = path.display();
    let refuse = |why| Refusal::usage(format!("--config {shown}: {why}"));
    let text = std::fs::read_to_string(path).map_err(|error| {
        refuse(format!("the file cannot be read: {}; choose another", plain(&error)))
    })?;
    parse_file(&text, options).map_err(refuse)
}

fn parse_file(text: &str, options: &[clap::Arg]) -> Result<toml::Table, String> {
    let file: toml::Table =
        text.parse().map_err(|error: toml::de::Error| error.to_string().trim().to_string())?;
    let names =
        || options.iter().map(|option| option.get_id().as_str()).filter(|it| *it != "config");
    match file.keys().find(|key| !names().any(|name| name == key.as_str())) {
        None => Ok(file),
        Some(key) => {
            let names = names().collect::<Vec<_>>().join(", ");
            Err(format!("unknown field `{key}`, expected one of {names}"))
        }
    }
}

/// Values that depend on the machine are not resolved.
pub(crate) fn parse_settings_file(text: &str) -> Result<Vec<(String, String)>, String> {
    let file = parse_file(text, &options())?;
    let (given, env) = (CommandLineOptions::default(), |_: &str| None);
    let sources = Sources { given: &given, env, file, file_path: "it".into() };
    let mut settings = Vec::new();
    for name in sources.file.keys() {
        let values = sources.pick_all(name).map_err(|why| why.to_string())?;
        settings.extend(values.into_iter().map(|asked| (name.clone(), asked.text)));
    }
    Ok(settings)
}

/// True for the first word or no value, false for the second word.
fn choose(asked: Option<&Sourced>, words: [&str; 2]) -> Result<bool, Refusal> {
    match asked {
        None => Ok(true),
        Some(asked) if asked.text == words[0] => Ok(true),
        Some(asked) if asked.text == words[1] => Ok(false),
        Some(asked) => Err(asked.refuse(format!("give {} or {}", words[0], words[1]))),
    }
}

fn resolve_memory(
    asked: &Sourced,
    is_per_process: bool,
    notes: &mut Vec<String>,
) -> Result<(u64, Option<Bounds>), Refusal> {
    let option = if is_per_process { "--memory-per-process" } else { "--memory" };
    let note = |bytes| {
        let remedy = |mib| match is_per_process {
            true => format!("{option} {mib}M"),
            false => format!("--memory auto, or --memory {mib}M"),
        };
        note_on_excess(&asked.shown, bytes, &memory_limits::available(), remedy)
    };
    if let Some(bounds) = Bounds::parse(&asked.text) {
        if is_per_process {
            return Err(asked.refuse("only --memory, the budget of the whole tree, can be auto"));
        }
        let bounds = bounds.map_err(|why| asked.refuse(why))?;
        notes.extend(note(bounds.floor_bytes));
        return Ok((bounds.first(), Some(bounds)));
    }
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
        let remedy = match asked.text.trim().parse::<u64>() {
            // Fewer than 8M would be refused too.
            Ok(number @ 1..1_000_000) => {
                let unit = if number < MIN_MEMORY_BYTES >> 20 { 'G' } else { 'M' };
                format!("a number without a unit is bytes: did you mean {number}{unit}?")
            }
            _ => format!("give more, such as {option} {}M", fitting_bytes().min(256 << 20) >> 20),
        };
        return Err(asked.refuse(format!(
            "too little{of}: the engine needs at least {} of DRAM; {remedy}",
            units::bytes(MIN_MEMORY_BYTES)
        )));
    }
    notes.extend(note(bytes));
    // Tables are sized for the resident memory.
    Ok((bytes.min(dram_bytes()), None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use softswap_engine::api::settings::AreaSpec;
    use softswap_engine::codec::{Choice, Compressor};
    use softswap_engine::store::io::poll::mode::Mode;

    #[derive(Parser)]
    struct Harness {
        #[command(flatten)]
        args: RunArgs,
    }

    type Variables<'a> = &'a [(&'a str, &'a str)];

    fn resolve_with(flags: &[&str], env: Variables<'_>) -> Result<Resolved, Refusal> {
        let line = ["run"].iter().chain(flags).chain(&["--", "true"]);
        let args = Harness::try_parse_from(line).unwrap().args;
        resolve(&args, |name| {
            let found = env.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_string())
        })
    }

    /// Uses a swap directory and no reserve, and a file of settings unless `file` is empty.
    fn settled(flags: &[&str], env: Variables<'_>, file: &str) -> Result<Resolved, Refusal> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("softswap.toml");
        std::fs::write(&path, file).unwrap();
        let env = [&[("SOFTSWAP_RESERVE", "0")], env].concat();
        let (swap, path) = (dir.path().to_str().unwrap(), path.to_str().unwrap());
        resolve_with(&[&["--swap", swap, "--config", path], flags].concat(), &env)
    }

    #[test]
    fn unusable_value_is_rejected_with_its_source() {
        let table: &[(&[&str], Variables<'_>, &str, &str)] = &[
            (&["--swap", ""], &[], "", "the path is empty"),
            (&[], &[("SOFTSWAP_SWAP", ";")], "", "the path is empty"),
            (&["--swap", "/proc"], &[], "", "stores no files"),
            (&[], &[("SOFTSWAP_MEMORY", "banana")], "SOFTSWAP_MEMORY=banana: not a size", ""),
            (&["--memory", "0"], &[], "--memory 0: too little", "such as --memory 256M"),
            (&["--memory", "1"], &[], "--memory 1: too little", "did you mean 1G?"),
            (&["--memory", "7"], &[], "--memory 7: too little", "did you mean 7G?"),
            (&["--memory", "8"], &[], "--memory 8: too little", "did you mean 8M?"),
            (&["--memory", "512"], &[], "--memory 512: too little", "did you mean 512M?"),
            (&["--memory", "4194304"], &[], "", "such as --memory 256M"),
            (&["--memory", "512K"], &[], "--memory 512K: too little", "give more"),
            (&["--memory-per-process", "1M"], &[], "", "such as --memory-per-process 256M"),
            (&["--memory-per-process", "auto"], &[], "", "only --memory"),
            (&["--park-on", "SIGINT"], &[], "--park-on SIGINT: give SIGTSTP", ""),
            (
                &["--park-on", "SIGTSTP", "--memory-per-process", "64M"],
                &[],
                "--park-on SIGTSTP: only a tree",
                "",
            ),
            (
                &[],
                &[("SOFTSWAP_CODEC", "zstd:99")],
                "SOFTSWAP_CODEC=zstd:99: \"zstd:99\" is not a codec",
                "",
            ),
        ];
        for (flags, env, start, part) in table {
            let Err(refused) = resolve_with(flags, env) else {
                panic!("{flags:?} {env:?} is accepted");
            };
            let refused = refused.to_string();
            assert!(refused.starts_with(start) && refused.contains(part), "{refused}");
        }
    }

    #[test]
    fn default_budget_depends_on_machine() {
        let auto = |flags: &[&str]| settled(flags, &[], "").unwrap().auto.is_some();
        assert!(auto(&[]) && auto(&["--memory", "auto:16M-64M"]));
        assert!(!auto(&["--memory", "64M"]) && !auto(&["--memory", "50%"]));
        assert!(!auto(&["--memory-per-process", "64M"]));
    }

    #[test]
    fn budget_beyond_dram_is_noted_with_remedy() {
        let notes = settled(&["--memory", "99999G"], &[], "").unwrap().notes;
        let has_remedy = |note: &String| note.contains("; use --memory auto, or --memory ");
        assert!(notes.iter().any(has_remedy), "{notes:?}");
    }

    #[test]
    fn pool_accepts_share_or_size() {
        assert_eq!(parse_pool("1.5GiB"), Ok(PoolLimit::Bytes(3 << 29)));
        assert_eq!(parse_pool("64MB"), Ok(PoolLimit::Bytes(64_000_000)));
        assert_eq!(parse_pool("20%"), Ok(PoolLimit::Percent(20)));
        for text in ["81", "100", "4.5", "4.5%", "-1M", "pool"] {
            assert!(parse_pool(text).is_err(), "{text}");
        }
    }

    #[test]
    fn flags_precede_environment_file_and_defaults() {
        let file = "memory = \"100M\"\npool = 10\ncodec = \"none\"\nno_move = true\n\
                    poll = \"hybrid\"\n";
        let env = [("SOFTSWAP_MEMORY", "200M"), ("SOFTSWAP_POOL", "20%")];
        let config = settled(&["--memory", "300M"], &env, file).unwrap().config;
        assert_eq!((config.memory_bytes, config.reserve_bytes), (300 << 20, 0));
        assert_eq!((config.pool, config.codec), (PoolLimit::Percent(20), Choice::NONE));
        assert!(config.avoid_move && config.manage_children && config.encrypt);
        assert_eq!(config.poll, Mode::Hybrid);
        // An empty variable counts as unset.
        let env = [("SOFTSWAP_MEMORY", ""), ("SOFTSWAP_QUIET", "no")];
        let empty = settled(&[], &env, "").unwrap();
        assert!(empty.config.memory_bytes >= MIN_MEMORY_BYTES && !empty.config.quiet);
    }

    #[test]
    fn codec_is_parsed_with_level() {
        let zstd = |level| Choice::Fixed(Some(Compressor::Zstd { level }));
        let table: &[(&[&str], Variables<'_>, Choice)] = &[
            (&[], &[], Choice::Auto),
            (&["--codec", "lz4"], &[], Choice::LZ4),
            (&["--codec", "zstd"], &[], zstd(1)),
            (&[], &[("SOFTSWAP_CODEC", "zstd:3")], zstd(3)),
        ];
        for (flags, env, codec) in table {
            assert_eq!(settled(flags, env, "").unwrap().config.codec, *codec, "{flags:?} {env:?}");
        }
    }

    #[test]
    fn any_source_sets_a_switch_unless_a_higher_one_resets_it() {
        let encrypts = |flags: &[&str], env: &[(&str, &str)], file: &str| {
            settled(flags, env, file).unwrap().config.encrypt
        };
        let file = "no_encrypt = true\n";
        assert!(encrypts(&[], &[], "") && !encrypts(&["--no-encrypt"], &[], ""));
        assert!(!encrypts(&[], &[("SOFTSWAP_NO_ENCRYPT", "1")], "") && !encrypts(&[], &[], file));
        assert!(encrypts(&[], &[("SOFTSWAP_NO_ENCRYPT", "0")], file));
        let is_quiet =
            |flags: &[&str], env: &[(&str, &str)]| settled(flags, env, "").unwrap().config.quiet;
        let (quiet, verbose) = (("SOFTSWAP_QUIET", "1"), ("SOFTSWAP_VERBOSE", "1"));
        assert!(is_quiet(&[], &[quiet]) && !is_quiet(&["-v"], &[quiet]));
        assert!(is_quiet(&["-q"], &[verbose]) && is_quiet(&[], &[quiet, verbose]));
    }

    #[test]
    fn areas_and_reports_come_from_one_source() {
        let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
        let [one, two] = [0, 1].map(|at| dirs[at].path().to_str().unwrap());
        let path = dirs[0].path().join("softswap.toml");
        let text = format!("swap = [\"{one},pri=3\", \"{two}:1G\"]\n");
        std::fs::write(&path, text + "report = [\"a.json\", \"b.html\"]\n").unwrap();
        let config = ["--reserve", "0", "--config", path.to_str().unwrap()];
        let resolved = |flags: &[&str], env: &[(&str, &str)]| {
            resolve_with(&[&config[..], flags].concat(), env).unwrap()
        };
        let areas = |flags: &[&str], env: &[(&str, &str)]| {
            let of = |area: AreaSpec| (area.path, area.priority, area.limit_bytes);
            resolved(flags, env).config.areas.into_iter().map(of).collect::<Vec<_>>()
        };
        let (one_path, two_path) = (PathBuf::from(one), PathBuf::from(two));
        let of_file = [(one_path.clone(), Some(3), None), (two_path.clone(), None, Some(1 << 30))];
        assert_eq!(areas(&[], &[]), of_file);
        let both = format!("{two};{one},pri=7");
        let env = [("SOFTSWAP_SWAP", both.as_str()), ("SOFTSWAP_REPORT", "c.json;d.json")];
        let of_env = [(two_path.clone(), None, None), (one_path.clone(), Some(7), None)];
        assert_eq!(areas(&[], &env), of_env);
        let of_flags = [(one_path, None, None), (two_path, None, None)];
        assert_eq!(areas(&["--swap", one, "--swap", two], &env), of_flags);

        let reports = |flags: &[&str], env: &[(&str, &str)]| resolved(flags, env).reports;
        assert_eq!(reports(&[], &[]), ["a.json", "b.html"].map(PathBuf::from));
        assert_eq!(reports(&[], &env), ["c.json", "d.json"].map(PathBuf::from));
        assert_eq!(reports(&["--report", "e;f"], &env), [PathBuf::from("e;f")]);
    }
}
