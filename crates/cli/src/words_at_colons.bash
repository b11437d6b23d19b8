
# bash breaks words at colons; NAMESPACE:INTERFACE is one word.
_trawl_words_at_colons() {
    local rest=$COMP_LINE word last=-1 index=0 i begun
    local -a words=()
    for ((i = 0; i < ${#COMP_WORDS[@]}; i++)); do
        word=${COMP_WORDS[i]}
        if ((last >= 0)) && [[ $rest != [[:space:]]* && ($word == :* || ${words[last]} == *:) ]]; then
            words[last]+=$word
        else
            rest=${rest#"${rest%%[![:space:]]*}"}
            words[++last]=$word
        fi
        rest=${rest#"$word"}
        if ((i == COMP_CWORD)); then
            index=$last
        fi
    done
    local COMP_WORDS=("${words[@]}") COMP_CWORD=$index
    _clap_complete_trawl "$1" "${words[index]}" "$3"
    begun=${words[index]%"${words[index]##*:}"}
    COMPREPLY=("${COMPREPLY[@]#"$begun"}")
}
complete -o nospace -o bashdefault -o default -F _trawl_words_at_colons trawl
