//! Parsers of user input: sizes, shares, options of swap areas, configuration files.

use crate::text;
use softswap_cli::parsers;
use softswap_cli::units::{self, Amount};
use softswap_engine::api::settings::{Config, PoolLimit};
use softswap_engine::codec::Choice;
use softswap_engine::store::io::poll::mode::Mode;
use softswap_engine::store::swap::Discard;
use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::str::FromStr;

fn round_trips<T: FromStr + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let shown = value.to_string();
        assert!(shown.parse::<T>().is_ok_and(|again| again == value), "{text:?} as {shown:?}");
    }
}

pub(crate) fn sizes(input: &[u8]) {
    for line in text(input).lines() {
        if let Ok(bytes) = units::parse_size(line) {
            assert!(bytes <= 1 << 56);
            assert!(units::parse_size(&units::bytes(bytes)).is_ok());
            assert_eq!(units::parse_amount(line), Ok(Amount::Bytes(bytes)));
        }
        if let Ok(Amount::Percent(percent)) = units::parse_amount(line) {
            assert!(percent > 0.0 && percent <= 100.0);
        }
        if let Some(limit) = parsers::pool(line) {
            assert_eq!(limit.to_string().parse(), Ok(limit));
        }
        round_trips::<PoolLimit>(line);
        round_trips::<Choice>(line);
        round_trips::<Mode>(line);
        round_trips::<Discard>(line);
        for area in parsers::each_area(line) {
            match parsers::area(area) {
                Ok(spec) => assert!(spec.priority.is_none_or(|priority| priority <= 32_767)),
                Err(why) => assert!(!why.is_empty()),
            }
        }
    }
}

/// A parsed configuration must survive formatting as variables.
pub(crate) fn settings(input: &[u8]) {
    let text = text(input);
    match parsers::settings_file(&text) {
        Ok(parsed) => assert!(parsed.iter().all(|(name, _)| text.contains(name))),
        Err(why) => assert!(!why.trim().is_empty()),
    }
    let variables: HashMap<&str, &str> =
        text.lines().filter_map(|line| line.split_once('=')).collect();
    let lookup = |name: &str| variables.get(name).map(ToString::to_string);
    match Config::from_env(lookup) {
        Some(Ok(config)) => {
            let passed_on: HashMap<_, _> = config.to_env().into_iter().collect();
            assert_eq!(Config::from_env(|name| passed_on.get(name).cloned()), Some(Ok(config)));
        }
        Some(Err(name)) => assert!(!name.is_empty()),
        None => assert!(variables.get("MEMORY").is_none_or(|text| text.is_empty())),
    }
}
