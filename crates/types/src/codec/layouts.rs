//! Macros that derive a codec and its documented layout from one declaration.
//!
//! Owns: [`structure`], a sequence of fields; [`choices`], one byte that has one of a fixed set of values;
//! [`variants`], such a byte followed by the fields of the chosen variant. Each macro defines a type that implements
//! [`Field`](crate::codec::Field), which encodes and decodes it, and [`Structure`](crate::codec::Structure), which
//! reports the layout in the notation of the format documents.
//!
//! A field is declared as `name: type`, or as `name: type as encoding` if this field uses another
//! [`Encoding`](crate::codec::Encoding) than the type's own.

/// Encodes, decodes or describes one field of a declaration. Uses the encoding that the declaration names, or that of
/// the field's type if it names none.
#[doc(hidden)]
#[macro_export]
macro_rules! declared_field {
    (put $value:expr, $out:ident, $ty:ty) => {
        $crate::codec::Field::put($value, $out)?
    };
    (put $value:expr, $out:ident, $ty:ty as $encoding:ty) => {
        <$encoding as $crate::codec::Encoding<'_, $ty>>::put($value, $out)?
    };
    (take $reader:ident, $field:ident, $ty:ty) => {
        <$ty as $crate::codec::Field>::take($reader, stringify!($field))?
    };
    (take $reader:ident, $field:ident, $ty:ty as $encoding:ty) => {
        <$encoding as $crate::codec::Encoding<'_, $ty>>::take($reader, stringify!($field))?
    };
    (describe $field:ident, $ty:ty) => {
        format!("{} {}", stringify!($field), <$ty as $crate::codec::Field>::layout())
    };
    (describe $field:ident, $ty:ty as $encoding:ty) => {
        format!("{} {}", stringify!($field), <$encoding as $crate::codec::Encoding<'_, $ty>>::layout())
    };
}

/// Defines a struct whose layout is the sequence of its fields. The declaration states the name of the struct in the
/// format documents. If `checked "what"` follows this name, decoding also calls the struct's method `check`. If the
/// check fails, decoding returns the error "expected what".
#[macro_export]
macro_rules! structure {
    (
        $(#[$doc:meta])*
        $name:ident $(<$lt:lifetime>)? as $label:literal $(checked $expected:literal)? {
            $($(#[$field_doc:meta])* $field:ident: $ty:ty $(as $encoding:ty)?,)*
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
                $($crate::declared_field!(put &self.$field, out, $ty $(as $encoding)?);)*
                Ok(())
            }

            #[inline]
            #[allow(unused_variables)]
            fn take(
                reader: &mut $crate::codec::Reader<'a>,
                _: &'static str,
            ) -> Result<Self, $crate::codec::Malformed> {
                let at = reader.position();
                let value = Self {
                    $($field: $crate::declared_field!(take reader, $field, $ty $(as $encoding)?),)*
                };
                $(value.check().map_err(|_| $crate::codec::Malformed { at, expected: $expected })?;)?
                Ok(value)
            }
        }

        impl<'a> $crate::codec::Structure for $name $(<$lt>)? {
            const NAME: &'static str = $label;

            fn definition() -> String {
                let fields: &[String] = &[$($crate::declared_field!(describe $field, $ty $(as $encoding)?),)*];
                fields.join(", ")
            }
        }
    };
}

/// Defines an enum whose variants have no data; it is encoded as one byte.
#[macro_export]
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
                $crate::codec::Field::put(&code, out)
            }

            #[inline]
            fn take(
                reader: &mut $crate::codec::Reader<'a>,
                what: &'static str,
            ) -> Result<Self, $crate::codec::Malformed> {
                let at = reader.position();
                match reader.u8(what)? {
                    $($code => Ok(Self::$variant),)*
                    _ => Err($crate::codec::Malformed { at, expected: $label }),
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
///
/// A variant has named fields, or one unnamed field (`Variant(field: type)`), or the fields of a structure
/// (`Variant[name: structure]`), or none. The section `families` adds variants that contain another enum that this
/// macro has defined. The first byte of such a variant is the first byte of the inner enum.
#[macro_export]
macro_rules! variants {
    (
        $(#[$doc:meta])*
        $name:ident $(<$lt:lifetime>)? as $label:literal {
            $(
                $(#[$variant_doc:meta])*
                $variant:ident $(($inner:ident: $inner_ty:ty))? $([$body:ident: $body_ty:ty])? = $code:tt $word:literal
                    $({ $($(#[$field_doc:meta])* $field:ident: $ty:ty $(as $encoding:ty)?),* $(,)? })?,
            )*
        }
        $(families {
            $($(#[$family_doc:meta])* $family:ident($members:ty) = $codes:pat,)*
        })?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name $(<$lt>)? {
            $(
                $(#[$variant_doc])*
                $variant $(($inner_ty))? $(($body_ty))? $({ $($(#[$field_doc])* $field: $ty),* })?,
            )*
            $($($(#[$family_doc])* $family($members),)*)?
        }

        impl<'a> $crate::codec::Field<'a> for $name $(<$lt>)? {
            fn layout() -> String {
                $label.to_owned()
            }

            fn put(&self, out: &mut Vec<u8>) -> Result<(), $crate::codec::EncodeError> {
                match self {
                    $(Self::$variant $(($inner))? $(($body))? $({ $($field),* })? => {
                        out.push($code);
                        $($crate::codec::Field::put($inner, out)?;)?
                        $($crate::codec::Field::put($body, out)?;)?
                        $($($crate::declared_field!(put $field, out, $ty $(as $encoding)?);)*)?
                    })*
                    $($(Self::$family(member) => $crate::codec::Field::put(member, out)?,)*)?
                }
                Ok(())
            }

            #[inline]
            fn take(
                reader: &mut $crate::codec::Reader<'a>,
                what: &'static str,
            ) -> Result<Self, $crate::codec::Malformed> {
                let at = reader.position();
                match reader.u8(what)? {
                    $($code => Ok(Self::$variant
                        $((<$inner_ty as $crate::codec::Field>::take(reader, stringify!($inner))?))?
                        $((<$body_ty as $crate::codec::Field>::take(reader, stringify!($body))?))?
                        $({ $($field: $crate::declared_field!(take reader, $field, $ty $(as $encoding)?),)* })?
                    ),)*
                    $($($codes => {
                        reader.rewind(at);
                        <$members as $crate::codec::Field>::take(reader, what).map(Self::$family)
                    })*)?
                    _ => Err($crate::codec::Malformed { at, expected: $label }),
                }
            }
        }

        impl<'a> $crate::codec::Structure for $name $(<$lt>)? {
            const NAME: &'static str = $label;

            fn definition() -> String {
                let variants: &[String] = &[
                    $({
                        let fields: &[String] = &[
                            $(format!("{} {}", stringify!($inner), <$inner_ty as $crate::codec::Field>::layout()),)?
                            $(<$body_ty as $crate::codec::Structure>::definition(),)?
                            $($($crate::declared_field!(describe $field, $ty $(as $encoding)?),)*)?
                        ];
                        format!("{} {} ({})", $code, $word, fields.join(", ")).replace(" ()", "")
                    },)*
                    $($(<$members as $crate::codec::Structure>::definition(),)*)?
                ];
                variants.join(", ")
            }
        }
    };
}

/// Implements [`Field`](crate::codec::Field) and [`Structure`](crate::codec::Structure) for a command whose decoder is
/// written by hand. The command's type is a view of its encoded bytes: it has a method `decode` and a field `bytes`.
/// The first byte of `bytes` identifies the kind of command. The method `put` does not write this byte.
macro_rules! by_hand {
    ($name:ident as $label:literal: $definition:literal) => {
        impl<'a> $crate::codec::Field<'a> for $name<'a> {
            fn layout() -> String {
                $label.to_owned()
            }

            fn put(&self, out: &mut Vec<u8>) -> Result<(), $crate::codec::EncodeError> {
                out.extend_from_slice(&self.bytes[1..]);
                Ok(())
            }

            #[inline]
            fn take(reader: &mut $crate::codec::Reader<'a>, _: &'static str) -> Result<Self, $crate::codec::Malformed> {
                Self::decode(reader)
            }
        }

        impl $crate::codec::Structure for $name<'_> {
            const NAME: &'static str = $label;

            fn definition() -> String {
                $definition.to_owned()
            }
        }
    };
}

pub(crate) use by_hand;
