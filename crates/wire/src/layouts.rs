//! Macros that derive the layout on the wire from a definition in code.
//!
//! Owns: [`structure`], a sequence of fields; [`choices`], one byte with a fixed set of values; [`variants`], such a
//! byte followed by the fields of the chosen variant. Each macro defines a type that implements
//! [`Field`](crate::Field), which encodes and decodes it, and [`Structure`](crate::Structure), which reports the
//! layout in the notation of `docs/formats/wire.md`.

/// Defines a struct whose layout is the sequence of its fields.
macro_rules! structure {
    (
        $(#[$doc:meta])*
        $name:ident $(<$lt:lifetime>)? as $label:literal {
            $($(#[$field_doc:meta])* $field:ident: $ty:ty,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name $(<$lt>)? {
            $($(#[$field_doc])* pub $field: $ty,)*
        }

        impl<'a> $crate::codec::Field<'a> for $name $(<$lt>)? {
            fn layout() -> String {
                $label.to_owned()
            }

            #[inline]
            #[allow(unused_variables)]
            fn put(&self, out: &mut Vec<u8>) -> Result<(), $crate::codec::EncodeError> {
                $($crate::codec::Field::put(&self.$field, out)?;)*
                Ok(())
            }

            #[inline]
            #[allow(unused_variables)]
            fn take(
                reader: &mut thalweg_types::record::Reader<'a>,
                _: &'static str,
            ) -> Result<Self, thalweg_types::record::Malformed> {
                Ok(Self { $($field: $crate::codec::Field::take(reader, stringify!($field))?,)* })
            }
        }

        impl<'a> $crate::codec::Structure for $name $(<$lt>)? {
            const NAME: &'static str = $label;

            fn definition() -> String {
                let fields: &[String] = &[$(
                    format!("{} {}", stringify!($field), <$ty as $crate::codec::Field<'a>>::layout()),
                )*];
                fields.join(", ")
            }
        }
    };
}

/// Defines an enum without data, encoded as one byte.
macro_rules! choices {
    (
        $(#[$doc:meta])*
        $name:ident as $label:literal {
            $($(#[$variant_doc:meta])* $variant:ident = $code:literal $word:literal,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl<'a> $crate::codec::Field<'a> for $name {
            fn layout() -> String {
                $label.to_owned()
            }

            fn put(&self, out: &mut Vec<u8>) -> Result<(), $crate::codec::EncodeError> {
                let code: u8 = match self {
                    $(Self::$variant => $code,)*
                };
                code.put(out)
            }

            #[inline]
            fn take(
                reader: &mut thalweg_types::record::Reader<'a>,
                what: &'static str,
            ) -> Result<Self, thalweg_types::record::Malformed> {
                let at = reader.position();
                match reader.u8(what)? {
                    $($code => Ok(Self::$variant),)*
                    _ => Err(thalweg_types::record::Malformed { at, expected: $label }),
                }
            }
        }

        impl $crate::codec::Structure for $name {
            const NAME: &'static str = $label;

            fn definition() -> String {
                let words: &[String] = &[$(format!("{} {}", $code, $word),)*];
                words.join(", ")
            }
        }
    };
}

/// Defines an enum with data, encoded as one byte that selects the variant, followed by the variant's fields.
macro_rules! variants {
    (
        $(#[$doc:meta])*
        $name:ident $(<$lt:lifetime>)? as $label:literal {
            $(
                $(#[$variant_doc:meta])*
                $variant:ident = $code:literal $word:literal
                    { $($(#[$field_doc:meta])* $field:ident: $ty:ty),* },
            )*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name $(<$lt>)? {
            $(
                $(#[$variant_doc])*
                $variant { $($(#[$field_doc])* $field: $ty),* },
            )*
        }

        impl<'a> $crate::codec::Field<'a> for $name $(<$lt>)? {
            fn layout() -> String {
                $label.to_owned()
            }

            fn put(&self, out: &mut Vec<u8>) -> Result<(), $crate::codec::EncodeError> {
                match self {
                    $(Self::$variant { $($field),* } => {
                        $crate::codec::Field::put(&($code as u8), out)?;
                        $($crate::codec::Field::put($field, out)?;)*
                    })*
                }
                Ok(())
            }

            #[inline]
            fn take(
                reader: &mut thalweg_types::record::Reader<'a>,
                what: &'static str,
            ) -> Result<Self, thalweg_types::record::Malformed> {
                let at = reader.position();
                match reader.u8(what)? {
                    $($code => Ok(Self::$variant {
                        $($field: $crate::codec::Field::take(reader, stringify!($field))?,)*
                    }),)*
                    _ => Err(thalweg_types::record::Malformed { at, expected: $label }),
                }
            }
        }

        impl<'a> $crate::codec::Structure for $name $(<$lt>)? {
            const NAME: &'static str = $label;

            fn definition() -> String {
                let variants: &[String] = &[$({
                    let fields: &[String] = &[$(
                        format!("{} {}", stringify!($field), <$ty as $crate::codec::Field<'a>>::layout()),
                    )*];
                    format!("{} {} ({})", $code, $word, fields.join(", ")).replace(" ()", "")
                },)*];
                variants.join(", ")
            }
        }
    };
}

pub(crate) use {choices, structure, variants};
